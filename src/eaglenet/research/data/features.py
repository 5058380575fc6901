"""Stored features as data: texts and videos that no tower has to encode again.

`data.feature_folder` reads and writes the folders they lie in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError
from eaglenet.core.files import atomic_folder, write_json
from eaglenet.core.types import FrameSpec, TextFeatures, VideoFeatures
from eaglenet.research.data.annotation_files import read_json
from eaglenet.research.data.records import RetrievalProtocol, stable_order


@dataclass(frozen=True)
class FeatureSplit:
    """Texts and videos as stored features. Arrays stay packed; batches are gathered on demand.

    ``packed_frames`` and ``packed_sentences`` are shared by every split cut from one folder;
    ``frame_start``, ``frame_count`` and ``text_row`` say which of their rows belong to this split.
    """

    packed_frames: Float[Tensor, "rows frame_dim"]
    packed_sentences: Tensor
    sentence_scales: Float[Tensor, "sentence_rows 1"] | None
    frame_start: Int[Tensor, "videos"]
    frame_count: Int[Tensor, "videos"]
    text_row: Int[Tensor, "texts"]
    video_of_text: Int[Tensor, "texts"]
    video_ids: tuple[str, ...]
    captions: tuple[str, ...]
    protocol: RetrievalProtocol
    max_frames: int
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What the folder says of itself: model, frame_spec, dataset, split."""

    @property
    def num_texts(self) -> int:
        return len(self.text_row)

    @property
    def num_videos(self) -> int:
        return len(self.video_ids)

    @property
    def text_dim(self) -> int:
        return self.packed_sentences.shape[1]

    @property
    def frame_dim(self) -> int:
        return self.packed_frames.shape[1]

    @property
    def device(self) -> torch.device:
        return self.packed_frames.device

    def text_batch(self, indices: Sequence[int] | Tensor) -> TextFeatures:
        """Sentence features of these texts as float32, on this split's device."""
        rows = self.text_row[self._indices(indices)]
        sentence = self.packed_sentences.index_select(0, rows).float()
        if self.sentence_scales is not None:
            sentence = sentence * self.sentence_scales[rows].float()
        return TextFeatures(sentence)

    def video_batch(self, indices: Sequence[int] | Tensor) -> VideoFeatures:
        """Frame features of these videos as float32, padded with masked zeros."""
        chosen = self._indices(indices)
        offsets = torch.arange(self.max_frames, device=self.device)
        mask: Bool[Tensor, "videos frames"] = offsets[None] < self.frame_count[chosen, None]
        rows = (self.frame_start[chosen, None] + offsets[None]).masked_fill(~mask, 0)
        # index_select over flat rows: several times faster on a CPU than indexing with two axes.
        frames = self.packed_frames.index_select(0, rows.flatten()).float()
        frames = frames.masked_fill_(~mask.flatten()[:, None], 0.0)
        return VideoFeatures(frames.view(*mask.shape, self.frame_dim), mask)

    @property
    def texts(self) -> TextFeatures:
        """All texts at once (float32: 4 bytes x texts x dim)."""
        return self.text_batch(torch.arange(self.num_texts))

    @property
    def videos(self) -> VideoFeatures:
        """All videos at once, padded to the longest."""
        return self.video_batch(torch.arange(self.num_videos))

    def to(self, device: torch.device | str) -> FeatureSplit:
        """The same split with its packed arrays on a device."""
        moved = {
            spec.name: getattr(self, spec.name).to(device)
            for spec in dataclasses.fields(self)
            if isinstance(getattr(self, spec.name), Tensor)
        }
        return replace(self, **moved)

    def select(self, video_indices: Sequence[int] | Tensor) -> FeatureSplit:
        """These videos with all their texts, in the order given; shares the packed arrays."""
        chosen = torch.as_tensor(video_indices, dtype=torch.int64).cpu()
        if len(chosen) == 0:
            raise DatasetError("a feature split needs at least one video; none was selected")
        if len(set(chosen.tolist())) != len(chosen):
            raise DatasetError("a video was selected twice; give each index once")
        new_index = torch.full((self.num_videos,), -1)
        new_index[chosen] = torch.arange(len(chosen))
        moved = new_index[self.video_of_text.cpu()]
        # Stable: the captions of one video keep their order.
        order = torch.argsort(torch.where(moved < 0, self.num_videos, moved), stable=True)
        texts = order[: int((moved >= 0).sum())]
        ids = tuple(self.video_ids[index] for index in chosen.tolist())
        return replace(
            self,
            frame_start=self.frame_start[chosen.to(self.device)],
            frame_count=self.frame_count[chosen.to(self.device)],
            text_row=self.text_row[texts.to(self.device)],
            video_of_text=moved[texts].to(self.device),
            video_ids=ids,
            captions=tuple(self.captions[index] for index in texts.tolist()),
            protocol=self.protocol.sized(len(texts), len(ids)),
        )

    def hold_out(self, num_videos: int, seed: int = 0) -> tuple[FeatureSplit, FeatureSplit]:
        """(train, validation): ``num_videos`` videos, chosen by a hash of their id, kept apart."""
        if not 0 < num_videos < self.num_videos:
            raise UsageError(
                f"cannot hold out {num_videos} of {self.num_videos} videos; "
                f"give a number from 1 to {self.num_videos - 1}"
            )
        train, validation = self._cut([self.num_videos - num_videos, num_videos], seed)
        return train, validation

    def split(self, fractions: Sequence[float], seed: int = 0) -> list[FeatureSplit]:
        """Disjoint parts by video; ``fractions`` sum to at most 1 and each gets a video or more."""
        if not fractions or min(fractions) <= 0 or sum(fractions) > 1 + 1e-9:
            raise UsageError(f"fractions must be positive and sum to at most 1, given {fractions}")
        sizes = [round(fraction * self.num_videos) for fraction in fractions]
        sizes[0] -= max(0, sum(sizes) - self.num_videos)
        if min(sizes) < 1:
            raise UsageError(f"{self.num_videos} videos are too few for the fractions {fractions}")
        return self._cut(sizes, seed)

    def _cut(self, sizes: Sequence[int], seed: int) -> list[FeatureSplit]:
        place = {video_id: index for index, video_id in enumerate(self.video_ids)}
        # From the back, so that the last part (held out) does not depend on the first one's size.
        order = [place[video_id] for video_id in reversed(stable_order(self.video_ids, seed))]
        order = order[len(order) - sum(sizes) :]
        parts = []
        for size in sizes:
            parts.append(self.select(sorted(order[:size])))
            order = order[size:]
        return parts

    def _indices(self, indices: Sequence[int] | Tensor) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.int64, device=self.device)


# Folders of pre-extracted features: frames and sentences that no tower has to make again.

FORMAT = 1
FRAMES_FILE = "frame_features.npy"
SENTENCES_FILE = "sentence_features.npy"
QUANTISED_FILE = "sentence_features_int8.npy"
SCALES_FILE = "sentence_scales.npy"
INDEX_FILE = "index.json"
# Rows looked at together when searching for NaN: bounds the memory, not the result.
CHECK_ROWS = 65536
METADATA = ("format", "model", "frame_spec", "dataset", "split", "protocol")
MOST_OF_A_VIDEO = 100_000_000
"""Frames or captions: eleven days of film at 100 frames a second."""
PER_VIDEO = ("video_ids", "frames_per_video", "captions_per_video", "captions")


def stored_widths(folder: Path) -> tuple[int, int] | None:
    """Widths of sentences and frames; None where there is no features folder to read.

    What is wrong with a folder is said by :func:`load_feature_folder`.
    """
    names = (QUANTISED_FILE, SENTENCES_FILE)
    sentences = next((folder / name for name in names if (folder / name).is_file()), None)
    if sentences is None or not (folder / FRAMES_FILE).is_file():
        return None
    try:
        arrays = [
            np.load(path, mmap_mode="r", allow_pickle=False)
            for path in (sentences, folder / FRAMES_FILE)
        ]
    except (OSError, ValueError):
        return None
    if any(array.ndim != 2 for array in arrays):
        return None
    return int(arrays[0].shape[1]), int(arrays[1].shape[1])


def load_feature_folder(folder: Path | str) -> FeatureSplit:
    """Read and check a feature folder."""
    folder = Path(folder)
    index = read_index(folder)
    frames = read_array(folder / FRAMES_FILE, (np.float16, np.float32))
    quantised = folder / QUANTISED_FILE
    if quantised.exists():
        sentences = read_array(quantised, (np.int8,))
        scales = read_array(folder / SCALES_FILE, (np.float16, np.float32))
        if scales.shape != (len(sentences), 1):
            raise DatasetError(
                f"{folder / SCALES_FILE}: shape {tuple(scales.shape)}, expected "
                f"({len(sentences)}, 1), one scale for each row of {QUANTISED_FILE}"
            )
    else:
        sentences = read_array(folder / SENTENCES_FILE, (np.float16, np.float32))
        scales = None
    frame_count = torch.tensor(index["frames_per_video"], dtype=torch.int64)
    text_count = torch.tensor(index["captions_per_video"], dtype=torch.int64)
    check_total(folder / FRAMES_FILE, len(frames), int(frame_count.sum()), "frames_per_video")
    check_total(folder, len(sentences), int(text_count.sum()), "captions_per_video")
    metadata = {key: value for key, value in index.items() if key in METADATA}
    captions = tuple(caption for group in index["captions"] for caption in group)
    video_ids = tuple(index["video_ids"])
    family = str(metadata.get("protocol") or f"features of {folder.name}")
    protocol = RetrievalProtocol(
        family, "every stored caption is a query; the gallery is every video"
    )
    return FeatureSplit(
        packed_frames=frames,
        packed_sentences=sentences,
        sentence_scales=scales,
        frame_start=frame_count.cumsum(0) - frame_count,
        frame_count=frame_count,
        text_row=torch.arange(len(sentences)),
        video_of_text=torch.repeat_interleave(torch.arange(len(video_ids)), text_count),
        video_ids=video_ids,
        captions=captions,
        protocol=protocol.sized(len(sentences), len(video_ids)),
        max_frames=int(frame_count.max()),
        metadata=metadata,
    )


def save_feature_folder(
    folder: Path | str,
    texts: TextFeatures,
    videos: VideoFeatures,
    *,
    video_of_text: Tensor,
    video_ids: Sequence[str],
    captions: Sequence[str],
    frame_spec: FrameSpec,
    model: str,
    dataset: str = "",
    split: str = "",
    protocol: str = "",
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Write features in the form :func:`load_feature_folder` reads; all of it or nothing.

    Stores sentence and frame vectors, not words or patches. ``video_of_text`` must be grouped by
    video in order, as :class:`~eaglenet.research.data.records.Split` gives it.
    """
    folder = Path(folder)
    if folder.exists():
        raise DatasetError(f"{folder} exists; features are never overwritten, give another folder")
    owner = video_of_text.cpu()
    text_count = torch.bincount(owner, minlength=len(video_ids))
    expected = torch.repeat_interleave(torch.arange(len(video_ids)), text_count)
    if len(owner) != len(texts) or len(owner) != len(captions) or not torch.equal(owner, expected):
        raise DatasetError("texts must be grouped by video in the order of video_ids, one row each")
    if len(videos) != len(video_ids):
        raise DatasetError(f"{len(videos)} rows of video features for {len(video_ids)} video_ids")
    mask = videos.mask.cpu()
    frame_count = mask.sum(dim=1)
    groups = np.split(np.array(captions, dtype=object), text_count.cumsum(0)[:-1].numpy())
    index = {
        "format": FORMAT,
        "model": model,
        "frame_spec": dataclasses.asdict(frame_spec),
        "dataset": dataset,
        "split": split,
        "protocol": protocol,
        "video_ids": list(video_ids),
        "frames_per_video": frame_count.tolist(),
        "captions_per_video": text_count.tolist(),
        "captions": [group.tolist() for group in groups],
    }
    with atomic_folder(folder) as temporary:
        frames = videos.frames.detach().cpu().to(dtype)[mask]
        np.save(temporary / FRAMES_FILE, frames.numpy())
        np.save(temporary / SENTENCES_FILE, texts.sentence.detach().cpu().to(dtype).numpy())
        write_json(temporary / INDEX_FILE, index, indent=None)
        # What cannot be read back is not kept: NaN, empty videos, overflow in float16.
        load_feature_folder(temporary)
    return folder


def read_index(folder: Path) -> dict[str, Any]:
    """``index.json``, checked: the lists agree, ids are unique, counts are positive."""
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder; give one that holds {INDEX_FILE}")
    path = folder / INDEX_FILE
    index = read_json(path)
    if not isinstance(index, dict):
        raise DatasetError(f"{path}: expected an object, found {type(index).__name__}")
    for key in PER_VIDEO:
        if not isinstance(index.get(key), list):
            raise DatasetError(f"{path}: key {key!r} is missing or not a list")
    ids = index["video_ids"]
    if not ids:
        raise DatasetError(f"{path}: no videos; the split is empty")
    for key in PER_VIDEO:
        if len(index[key]) != len(ids):
            raise DatasetError(f"{path}: {len(index[key])} {key} but {len(ids)} video_ids")
    if not all(isinstance(video_id, str) and video_id for video_id in ids):
        raise DatasetError(f"{path}: video_ids must be non-empty strings")
    if len(set(ids)) != len(ids):
        twice = next(video_id for video_id in ids if ids.count(video_id) > 1)
        raise DatasetError(f"{path}: video id {twice!r} appears more than once")
    for key in ("frames_per_video", "captions_per_video"):
        for video_id, count in zip(ids, index[key], strict=True):
            if not isinstance(count, int) or not 1 <= count <= MOST_OF_A_VIDEO:
                raise DatasetError(
                    f"{path}: {key} of {video_id!r} is {count!r:.40}, expected 1 or more, and at "
                    f"most {MOST_OF_A_VIDEO:,}"
                )
    for video_id, group, count in zip(
        ids, index["captions"], index["captions_per_video"], strict=True
    ):
        if not isinstance(group, list) or len(group) != count:
            raise DatasetError(
                f"{path}: captions of {video_id!r} do not have the {count} entries that "
                "captions_per_video gives"
            )
    return index


def read_array(path: Path, dtypes: Sequence[Any]) -> Tensor:
    """A two-axis array of one of ``dtypes`` with only finite numbers."""
    try:
        array = untrusted.read_array(path)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; a feature folder needs it") from None
    except (ValueError, EOFError, OSError) as error:
        raise DatasetError(f"{path} cannot be read as a .npy array: {error}") from error
    if array.ndim != 2 or array.dtype not in [np.dtype(kind) for kind in dtypes]:
        expected = " or ".join(np.dtype(kind).name for kind in dtypes)
        raise DatasetError(
            f"{path}: {array.dtype.name} array of shape {array.shape}, "
            f"expected {expected} with two axes"
        )
    if array.dtype.kind == "f":
        for start in range(0, len(array), CHECK_ROWS):
            finite = np.isfinite(array[start : start + CHECK_ROWS]).all(axis=1)
            if not finite.all():
                row = start + int(np.flatnonzero(~finite)[0])
                raise NonFiniteError(
                    f"{path}: row {row} holds NaN or infinity; extract the features again"
                )
    return torch.from_numpy(array)


def check_total(path: Path, found: int, expected: int, key: str) -> None:
    if found != expected:
        raise DatasetError(
            f"{path}: {found} rows stored, but {key} of {INDEX_FILE} sums to {expected}"
        )


def made_otherwise(trained: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Where two folders say that they were made from other frames or by another model.

    Features of another tower give other scores without any error.
    """
    return [
        f"these features have {key} {given[key]}, those of the training {trained[key]}: "
        "scores will differ"
        for key in ("model", "frame_spec")
        if key in trained and key in given and trained[key] != given[key]
    ]
