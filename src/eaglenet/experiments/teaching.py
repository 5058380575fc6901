"""A trained run as a teacher: its vectors, written beside the features that a student reads."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.data.expert_writing import save_teacher
from eaglenet.errors import UsageError
from eaglenet.experiments.feature_data import read_features
from eaglenet.methods.folder import load
from eaglenet.methods.teachtext import teaching_vectors
from eaglenet.training.epochs import index_chunks


def write_teacher(name_or_folder: str, folder: Path, name: str) -> tuple[int, int]:
    """Encode every text and video of a features folder with a model; gives their numbers.

    The model may read other words of the folder than the student will.
    """
    if not name.replace("-", "").isalnum():
        raise UsageError(f"teacher {name!r}: use letters, digits and -; it names a file")
    if (folder / f"teacher_{name}_text.npy").exists():
        raise UsageError(f"{folder} has a teacher {name!r} already; give another name")
    method = load(name_or_folder).eval()
    split = read_features(folder, method)
    with torch.inference_mode():
        texts = [
            teaching_vectors(method, method.encode_text(split.text_batch(rows)))
            for rows in index_chunks(split.num_texts, 256)
        ]
        videos = [
            teaching_vectors(method, method.encode_video(split.video_batch(rows)))
            for rows in index_chunks(split.num_videos, 64)
        ]
    save_teacher(folder, name, torch.cat(texts), torch.cat(videos))
    return split.num_texts, split.num_videos
