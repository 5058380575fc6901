"""Feature folders: packed arrays, gathered batches, held-out videos, loud checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError
from eaglenet.core.types import FrameSpec, TextFeatures, VideoFeatures
from eaglenet.research.data.features import (
    FeatureSplit,
    differing_origins,
    load_feature_folder,
    save_feature_folder,
)

FRAMES = [2, 7, 1, 4, 3]
CAPTIONS = [3, 1, 2, 1, 4]
FRAME_DIM, TEXT_DIM = 16, 6


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """5 videos with 17 frames and 11 captions, sentences quantised."""
    generator = np.random.default_rng(0)
    frames = generator.normal(size=(sum(FRAMES), FRAME_DIM)).astype(np.float16)
    sentences = generator.integers(-127, 128, size=(sum(CAPTIONS), TEXT_DIM)).astype(np.int8)
    np.save(tmp_path / "frame_features.npy", frames)
    np.save(tmp_path / "sentence_features_int8.npy", sentences)
    scales = generator.uniform(0.01, 0.02, size=(sum(CAPTIONS), 1)).astype(np.float16)
    np.save(tmp_path / "sentence_scales.npy", scales)
    index = {
        "video_ids": [f"v{number}" for number in range(5)],
        "frames_per_video": FRAMES,
        "captions_per_video": CAPTIONS,
        "captions": [[f"v{v} c{c}" for c in range(count)] for v, count in enumerate(CAPTIONS)],
    }
    (tmp_path / "index.json").write_text(json.dumps(index))
    return tmp_path


def test_batches_equal_a_loop_over_the_packed_arrays(folder: Path) -> None:
    split = load_feature_folder(folder)
    assert (split.num_videos, split.num_texts, split.max_frames) == (5, 11, 7)
    assert (split.frame_dim, split.text_dim) == (FRAME_DIM, TEXT_DIM)
    chosen = [3, 1, 1]
    batch = split.video_batch(chosen)
    packed = torch.from_numpy(np.load(folder / "frame_features.npy")).float()
    for place, video in enumerate(chosen):
        start, count = sum(FRAMES[:video]), FRAMES[video]
        torch.testing.assert_close(batch.frames[place, :count], packed[start : start + count])
        assert batch.frames[place, count:].abs().sum() == 0
        assert batch.mask[place].tolist() == [True] * count + [False] * (7 - count)
    rows = torch.tensor([10, 0, 4])
    sentences = np.load(folder / "sentence_features_int8.npy").astype(np.float32)
    scales = np.load(folder / "sentence_scales.npy").astype(np.float32)
    expected = torch.from_numpy(sentences * scales)[rows]
    torch.testing.assert_close(split.text_batch(rows).sentence, expected)


def test_texts_know_their_video_and_caption(folder: Path) -> None:
    split = load_feature_folder(folder)
    assert split.video_of_text.tolist() == [0, 0, 0, 1, 2, 2, 3, 4, 4, 4, 4]
    for text, video in enumerate(split.video_of_text.tolist()):
        assert split.captions[text].startswith(split.video_ids[video] + " ")
    assert split.texts.sentence.shape == (11, TEXT_DIM)
    assert split.videos.frames.shape == (5, 7, FRAME_DIM)


def test_selected_videos_bring_all_their_texts(folder: Path) -> None:
    split = load_feature_folder(folder)
    part = split.select([4, 0])
    assert part.video_ids == ("v4", "v0")
    assert part.captions == ("v4 c0", "v4 c1", "v4 c2", "v4 c3", "v0 c0", "v0 c1", "v0 c2")
    assert part.video_of_text.tolist() == [0, 0, 0, 0, 1, 1, 1]
    torch.testing.assert_close(part.texts.sentence, split.texts[[7, 8, 9, 10, 0, 1, 2]].sentence)
    torch.testing.assert_close(part.videos.frames, split.videos[[4, 0]].frames)
    assert part.frames.values is split.frames.values
    assert part.protocol.name.endswith("(7 texts x 2 videos)")
    with pytest.raises(DatasetError, match="twice"):
        split.select([1, 1])
    with pytest.raises(DatasetError, match="at least one"):
        split.select([])


def test_held_out_videos_are_disjoint_and_do_not_depend_on_order(folder: Path) -> None:
    split = load_feature_folder(folder)
    train, validation = split.hold_out(2, seed=3)
    assert set(train.video_ids) | set(validation.video_ids) == set(split.video_ids)
    assert not set(train.video_ids) & set(validation.video_ids)
    assert (train.num_videos, validation.num_videos) == (3, 2)
    turned = split.select([4, 3, 2, 1, 0]).hold_out(2, seed=3)[1]
    assert set(turned.video_ids) == set(validation.video_ids)
    for wrong in (0, 5):
        with pytest.raises(UsageError, match=r"cannot hold out .*--set data\.val_videos=N"):
            split.hold_out(wrong)


def save(folder: Path, split: FeatureSplit, **changes: object) -> Path:
    arguments: dict[str, object] = {
        "video_of_text": split.video_of_text,
        "video_ids": split.video_ids,
        "captions": split.captions,
        "frame_spec": FrameSpec(num_frames=7),
        "model": "clip",
    }
    texts, videos = split.texts, split.videos
    texts = changes.pop("texts", texts)  # type: ignore[assignment]
    videos = changes.pop("videos", videos)  # type: ignore[assignment]
    return save_feature_folder(folder, texts, videos, **(arguments | changes))  # type: ignore[arg-type]


def test_saved_features_come_back_equal(folder: Path, tmp_path: Path) -> None:
    split = load_feature_folder(folder)
    saved = save(tmp_path / "saved", split, dtype=torch.float32, protocol="toy")
    again = load_feature_folder(saved)
    assert torch.equal(again.texts.sentence, split.texts.sentence)
    assert torch.equal(again.videos.frames, split.videos.frames)
    assert torch.equal(again.videos.mask, split.videos.mask)
    assert again.captions == split.captions
    assert again.protocol.name == "toy (11 texts x 5 videos)"
    assert again.metadata["model"] == "clip"
    with pytest.raises(DatasetError, match="never overwritten"):
        save(tmp_path / "saved", split)


def test_features_of_other_frames_or_models_are_told_apart(folder: Path, tmp_path: Path) -> None:
    saved = load_feature_folder(save(tmp_path / "saved", load_feature_folder(folder))).metadata
    for one, other in ((saved, saved), ({}, saved), (saved, {})):
        assert differing_origins(one, other) == []
    spec = {**saved["frame_spec"], "size": 336}
    by_model, by_frames = differing_origins({"model": "other", "frame_spec": spec}, saved)
    assert "model clip, those of the training other" in by_model
    assert "336" in by_frames


def test_features_that_could_not_be_read_back_leave_nothing_behind(
    folder: Path, tmp_path: Path
) -> None:
    split = load_feature_folder(folder)
    texts = TextFeatures(torch.full((11, TEXT_DIM), float("nan")))
    with pytest.raises(NonFiniteError, match="row 0 has NaN"):
        save(tmp_path / "saved", split, texts=texts)
    videos = split.videos
    large = VideoFeatures(videos.frames * 1e6, videos.mask)
    with pytest.raises(NonFiniteError, match=r"frame_features.npy"):
        save(tmp_path / "saved", split, videos=large)
    empty = VideoFeatures(videos.frames, torch.zeros_like(videos.mask))
    with pytest.raises(DatasetError, match="expected 1 or more"):
        save(tmp_path / "saved", split, videos=empty)
    with pytest.raises(DatasetError, match="grouped by video"):
        save(tmp_path / "saved", split, video_of_text=split.video_of_text.flip(0))
    assert [path.name for path in tmp_path.iterdir() if "saved" in path.name] == []


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("video_ids", ["a", "b", "c", "d", "a"], "'a' appears more than once"),
        ("video_ids", [], "the split is empty"),
        ("video_ids", None, "'video_ids' is missing"),
        ("frames_per_video", [1, 2], "2 frames_per_video but 5 video_ids"),
        ("frames_per_video", [2, 7, 1, 4, 0], "is 0, expected 1 or more"),
        ("frames_per_video", [2, 7, 1, 4, 4], "17 rows.*sums to 18"),
        ("captions_per_video", [3, 1, 2, 1, 3], "captions of 'v4' do not have the 3 entries"),
    ],
)
def test_an_index_that_contradicts_itself_is_refused(
    folder: Path, key: str, value: Any, message: str
) -> None:
    index = json.loads((folder / "index.json").read_text())
    index[key] = value
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(DatasetError, match=message):
        load_feature_folder(folder)


def test_broken_arrays_are_refused_with_file_and_row(folder: Path) -> None:
    frames = np.load(folder / "frame_features.npy")
    frames[5, 2] = np.inf
    np.save(folder / "frame_features.npy", frames)
    with pytest.raises(NonFiniteError, match=r"frame_features.npy: row 5"):
        load_feature_folder(folder)
    np.save(folder / "frame_features.npy", frames.astype(np.float64))
    with pytest.raises(DatasetError, match=r"float64 array .* expected float16 or float32"):
        load_feature_folder(folder)
    (folder / "frame_features.npy").write_bytes(b"")
    with pytest.raises(DatasetError, match=r"cannot be read as a .npy"):
        load_feature_folder(folder)
    (folder / "frame_features.npy").unlink()
    with pytest.raises(DatasetError, match="is missing"):
        load_feature_folder(folder)
    with pytest.raises(DatasetError, match="is not a folder"):
        load_feature_folder(folder / "nowhere")


def test_scales_must_fit_the_sentences(folder: Path) -> None:
    np.save(folder / "sentence_scales.npy", np.ones((3, 1), np.float16))
    with pytest.raises(DatasetError, match=r"expected \(11, 1\)"):
        load_feature_folder(folder)
