"""DiDeMo for paragraph retrieval: all sentences of a video, joined, are its one query."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data.annotation_files import (
    VideoFinder,
    captions_of_entries,
    find_file,
    finder_for,
    read_json,
    read_list,
    stem_of,
)
from eaglenet.research.data.records import (
    DatasetSpec,
    RetrievalProtocol,
    Split,
    check_split_name,
    gather_records,
    make_split,
)
from eaglenet.research.data.sources import add_dataset

FOLDERS = ("didemo", "DiDeMo", "Didemo")
SPLITS = ("train", "val", "test")
WINDOWS = {"whole": None, "first_31_seconds": (0.0, 31.0)}
PARAGRAPH = RetrievalProtocol(
    "DiDeMo paragraph retrieval",
    "the descriptions of a video joined by spaces are one query; one query a video",
)


def load(
    root: Path | str,
    split: str,
    *,
    window: Literal["whole", "first_31_seconds"] = "whole",
    video_folders: Sequence[Path | str] = (),
    finder: VideoFinder | None = None,
) -> Split:
    """A split of DiDeMo, in the order of its list file.

    Paper: frames come from the whole video. ``window="first_31_seconds"`` is what the released
    code decodes.
    """
    root = Path(root)
    check_split_name("didemo", split, SPLITS)
    if window not in WINDOWS:
        raise UsageError(f"didemo window {window!r} is unknown; known: {', '.join(WINDOWS)}")
    names = (f"{split}_data.json", f"{split}_data.derived.json")
    sentences = read_sentences(find_file(root, names, FOLDERS))
    # List files and annotations do not always agree on the extension of a video.
    paragraphs = {stem_of(video): " ".join(texts) for video, texts in sentences.items()}
    ids = read_list(find_file(root, (f"{split}_list.txt",), FOLDERS))
    captions = {
        video_id: (paragraphs[stem_of(video_id)],)
        for video_id in ids
        if stem_of(video_id) in paragraphs
    }
    find = (finder or finder_for(root, video_folders)).find
    videos, left_out = gather_records(ids, captions, find, window=WINDOWS[window])
    return make_split("didemo", split, PARAGRAPH, videos, left_out)


def read_sentences(path: Path) -> dict[str, list[str]]:
    """``*_data.json``: [{"video", "description", ...}, ...], in file order."""
    content = read_json(path)
    if not isinstance(content, list):
        raise DatasetError(f"{path}: expected a list of descriptions")
    return captions_of_entries(
        "didemo", path, enumerate(content), video="video", caption="description", title="entry"
    )


add_dataset(
    DatasetSpec(
        "didemo",
        "DiDeMo",
        load,
        options={"window": "whole (the paper) or first_31_seconds (the released code)"},
        max_words=64,
    )
)
