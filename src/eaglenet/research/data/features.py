"""Stored features: splits of encoded texts and videos, and their folders."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import DatasetError, NonFiniteError, UsageError
from eaglenet.core.files import atomic_folder, write_json
from eaglenet.core.types import Expert, FrameSpec, TextFeatures, TextGraph, Tokens, VideoFeatures
from eaglenet.research.data.annotation_files import read_json
from eaglenet.research.data.records import RetrievalProtocol, hold_out_ids

Record = TypeVar("Record", bound="PackedTokens | FeatureSplit")


@dataclass(frozen=True)
class PackedTokens:
    """Sets of tokens in one array: set ``n`` has ``count[n]`` rows, starting at ``start[n]``.

    max_count: size to which sets are padded; by default that of the largest set, at least 1.
    """

    values: Tensor
    start: Int[Tensor, "sets"]
    count: Int[Tensor, "sets"]
    seconds: Float[Tensor, "rows"] | None = None
    max_count: int = 0

    def __post_init__(self) -> None:
        if not self.max_count:
            largest = int(self.count.max()) if len(self.count) else 1
            object.__setattr__(self, "max_count", max(largest, 1))

    def rows_of(self, sets: Int[Tensor, "sets"]) -> tuple[Tensor, Bool[Tensor, "sets tokens"]]:
        """Return the row of each token of each set, and the mask of tokens that exist."""
        offsets = torch.arange(self.max_count, device=self.count.device)
        mask = offsets[None] < self.count[sets, None]
        return (self.start[sets, None] + offsets[None]).masked_fill(~mask, 0), mask

    def gather(self, sets: Int[Tensor, "sets"]) -> Expert:
        """Return sets as float32, padded with zeros that are masked."""
        rows, mask = self.rows_of(sets)
        if len(self.values) == 0:
            empty = torch.zeros(*mask.shape, self.values.shape[1], device=mask.device)
            return Expert(empty, mask)
        # On a CPU, index_select is several times faster than indexing with two axes.
        values = self.values.index_select(0, rows.flatten()).float()
        values = values.masked_fill_(~mask.flatten()[:, None], 0.0).view(*mask.shape, -1)
        if self.seconds is None:
            return Expert(values, mask)
        return Expert(values, mask, self.seconds[rows].masked_fill(~mask, -1.0))

    def select(self, sets: Int[Tensor, "sets"]) -> PackedTokens:
        """Select sets without copying their values; ``max_count`` does not change."""
        return replace(self, start=self.start[sets], count=self.count[sets])

    def to(self, device: torch.device | str) -> PackedTokens:
        return _move_fields(self, device)


@dataclass(frozen=True)
class FeatureSplit:
    """Stored features of texts and videos, in arrays that the splits of a folder share.

    frames: one set per video.
    text_row: row of each text in ``text_vectors``.
    metadata: model, frame_spec, dataset and split of the folder.
    frames_expert: name of the frames among the experts, in a folder of experts (`data.experts`).
    selected_words: kind of token features that :meth:`text_batch` returns.
    """

    frames: PackedTokens
    text_vectors: Tensor
    text_scales: Float[Tensor, "rows 1"] | None
    text_row: Int[Tensor, "texts"]
    video_of_text: Int[Tensor, "texts"]
    video_ids: tuple[str, ...]
    captions: tuple[str, ...]
    protocol: RetrievalProtocol
    metadata: Mapping[str, Any] = field(default_factory=dict)
    experts: Mapping[str, PackedTokens] = field(default_factory=dict)
    frames_expert: str = ""
    words: Mapping[str, PackedTokens] = field(default_factory=dict)
    selected_words: str = ""
    token_ids: PackedTokens | None = None
    graphs: TextGraph | None = None
    text_teachers: Tensor | None = None
    video_teachers: Tensor | None = None

    @property
    def num_texts(self) -> int:
        return len(self.text_row)

    @property
    def num_videos(self) -> int:
        return len(self.video_ids)

    @property
    def text_dim(self) -> int:
        return self.text_vectors.shape[1]

    @property
    def frame_dim(self) -> int:
        return self.frames.values.shape[1]

    @property
    def max_frames(self) -> int:
        return self.frames.max_count

    @property
    def device(self) -> torch.device:
        return self.frames.values.device

    @property
    def expert_widths(self) -> dict[str, int]:
        """Widths of all experts, including the frames, in alphabetical order."""
        widths = {name: tokens.values.shape[1] for name, tokens in self.experts.items()}
        return dict(sorted({**widths, self.frames_expert: self.frame_dim}.items()))

    @property
    def words_dim(self) -> int:
        """Width of the selected token features; of text features if there are none."""
        return self.words[self.selected_words].values.shape[1] if self.words else self.text_dim

    def text_batch(self, indices: Sequence[int] | Tensor) -> TextFeatures:
        """Return texts as float32, with all the features that the folder has of them."""
        rows = self.text_row[self._indices(indices)]
        vectors = self.text_vectors.index_select(0, rows).float()
        if self.text_scales is not None:
            vectors = vectors * self.text_scales[rows].float()
        features = TextFeatures(vectors)
        if self.words:
            words = self.words[self.selected_words].gather(rows)
            features = replace(features, words=words.values, words_mask=words.mask)
        if self.token_ids is not None:
            token_rows, mask = self.token_ids.rows_of(rows)
            ids = self.token_ids.values[token_rows, 0].long().masked_fill(~mask, 0)
            features = replace(features, tokens=Tokens(ids, mask))
        if self.graphs is not None:
            features = replace(features, graph=self.graphs[rows])
        if self.text_teachers is not None:
            features = replace(features, teachers=self.text_teachers[rows].float())
        return features

    def video_batch(self, indices: Sequence[int] | Tensor) -> VideoFeatures:
        """Return frames and experts of videos as float32, padded with zeros that are masked."""
        rows = self._indices(indices)
        frames = self.frames.gather(rows)
        if not self.frames_expert:
            return VideoFeatures(frames.values, frames.mask)
        experts = {name: tokens.gather(rows) for name, tokens in self.experts.items()}
        experts[self.frames_expert] = frames
        teachers = None if self.video_teachers is None else self.video_teachers[rows].float()
        return VideoFeatures(
            frames.values, frames.mask, experts=dict(sorted(experts.items())), teachers=teachers
        )

    @property
    def texts(self) -> TextFeatures:
        """Features of all texts."""
        return self.text_batch(torch.arange(self.num_texts))

    @property
    def videos(self) -> VideoFeatures:
        """Features of all videos, padded to the longest."""
        return self.video_batch(torch.arange(self.num_videos))

    def to(self, device: torch.device | str) -> FeatureSplit:
        return _move_fields(self, device)

    def select(self, video_indices: Sequence[int] | Tensor) -> FeatureSplit:
        """Select videos in this order, with all their texts, without copying features."""
        rows = torch.as_tensor(video_indices, dtype=torch.int64).cpu()
        if len(rows) == 0:
            raise DatasetError("a feature split needs at least one video; none was selected")
        if len(set(rows.tolist())) != len(rows):
            raise DatasetError("a video was selected twice; use each index once")
        new_index = torch.full((self.num_videos,), -1)
        new_index[rows] = torch.arange(len(rows))
        video_of_text = new_index[self.video_of_text.cpu()]
        is_selected = video_of_text >= 0
        # Stable: the captions of a video keep their order.
        order = torch.argsort(torch.where(is_selected, video_of_text, self.num_videos), stable=True)
        texts = order[: int(is_selected.sum())]
        ids = tuple(self.video_ids[index] for index in rows.tolist())
        videos, teachers = rows.to(self.device), self.video_teachers
        return replace(
            self,
            frames=self.frames.select(videos),
            experts={name: tokens.select(videos) for name, tokens in self.experts.items()},
            video_teachers=None if teachers is None else teachers[videos],
            text_row=self.text_row[texts.to(self.device)],
            video_of_text=video_of_text[texts].to(self.device),
            video_ids=ids,
            captions=tuple(self.captions[index] for index in texts.tolist()),
            protocol=self.protocol.with_counts(len(texts), len(ids)),
        )

    def hold_out(self, num_videos: int, seed: int = 0) -> tuple[FeatureSplit, FeatureSplit]:
        """Split off ``num_videos`` validation videos by a hash of their ids."""
        if not 0 < num_videos < self.num_videos:
            raise UsageError(
                f"cannot hold out {num_videos} of {self.num_videos} videos for validation; "
                f"expected 1 to {self.num_videos - 1}: set it with --set data.val_videos=N"
            )
        held_out = hold_out_ids(self.video_ids, num_videos, seed)
        rows = range(self.num_videos)
        train = self.select([row for row in rows if self.video_ids[row] not in held_out])
        validation = self.select([row for row in rows if self.video_ids[row] in held_out])
        return train, validation

    def _indices(self, indices: Sequence[int] | Tensor) -> Tensor:
        return torch.as_tensor(indices, dtype=torch.int64, device=self.device)


def _move_fields(record: Record, device: torch.device | str) -> Record:
    values = {spec.name: getattr(record, spec.name) for spec in dataclasses.fields(record)}
    return replace(record, **_move(values, device))


def _move(value: Any, device: torch.device | str) -> Any:
    if isinstance(value, Mapping):
        return {name: _move(entry, device) for name, entry in value.items()}
    return value.to(device) if hasattr(value, "to") else value


FORMAT = 1
FRAMES_FILE = "frame_features.npy"
SENTENCES_FILE = "sentence_features.npy"
QUANTISED_FILE = "sentence_features_int8.npy"
SCALES_FILE = "sentence_scales.npy"
INDEX_FILE = "index.json"
CHECK_ROWS = 65536
"""Rows checked for NaN at a time; limits memory."""
METADATA = ("format", "model", "frame_spec", "dataset", "split", "protocol")
MAX_PER_VIDEO = 100_000_000
"""Frames or captions per video; eleven days at 100 frames per second."""
PER_VIDEO = ("video_ids", "frames_per_video", "captions_per_video", "captions")


def stored_widths(folder: Path) -> tuple[int, int] | None:
    """Read the widths of text and frame features; None if the folder cannot be read.

    :func:`load_feature_folder` then raises the reason.
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
    folder = Path(folder)
    index = read_index(folder)
    frames = read_array(folder / FRAMES_FILE, (np.float16, np.float32))
    quantised_file = folder / QUANTISED_FILE
    if quantised_file.exists():
        sentences = read_array(quantised_file, (np.int8,))
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
    protocol = RetrievalProtocol(family)
    return FeatureSplit(
        frames=PackedTokens(frames, frame_count.cumsum(0) - frame_count, frame_count),
        text_vectors=sentences,
        text_scales=scales,
        text_row=torch.arange(len(sentences)),
        video_of_text=torch.repeat_interleave(torch.arange(len(video_ids)), text_count),
        video_ids=video_ids,
        captions=captions,
        protocol=protocol.with_counts(len(sentences), len(video_ids)),
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
    """Write a feature folder atomically, with text and frame features, not tokens or patches.

    ``video_of_text`` must be sorted, as in :class:`~eaglenet.research.data.records.Split`.
    """
    folder = Path(folder)
    if folder.exists():
        raise DatasetError(f"{folder} exists; features are never overwritten, use another folder")
    video_of_text = video_of_text.cpu()
    text_count = torch.bincount(video_of_text, minlength=len(video_ids))
    is_sorted = bool((video_of_text.diff() >= 0).all())
    if not is_sorted or not len(video_of_text) == len(texts) == len(captions):
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
        # Reading checks for NaN, empty videos and overflow in float16.
        load_feature_folder(temporary)
    return folder


def read_index(folder: Path) -> dict[str, Any]:
    """Read and check ``index.json``."""
    if not folder.is_dir():
        raise DatasetError(f"{folder} is not a folder; expected a folder with {INDEX_FILE}")
    path = folder / INDEX_FILE
    index = read_json(path)
    if not isinstance(index, dict):
        raise DatasetError(f"{path}: expected an object, got {type(index).__name__}")
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
        duplicate = next(video_id for video_id in ids if ids.count(video_id) > 1)
        raise DatasetError(f"{path}: video id {duplicate!r} appears more than once")
    for key in ("frames_per_video", "captions_per_video"):
        for video_id, count in zip(ids, index[key], strict=True):
            if not isinstance(count, int) or not 1 <= count <= MAX_PER_VIDEO:
                raise DatasetError(
                    f"{path}: {key} of {video_id!r} is {count!r:.40}, expected 1 or more, and at "
                    f"most {MAX_PER_VIDEO:,}"
                )
    for video_id, group, count in zip(
        ids, index["captions"], index["captions_per_video"], strict=True
    ):
        if not isinstance(group, list) or len(group) != count:
            raise DatasetError(
                f"{path}: captions of {video_id!r} do not have the {count} entries of "
                "captions_per_video"
            )
    return index


def read_array(path: Path, dtypes: Sequence[Any]) -> Tensor:
    """Read a two-axis array of one of ``dtypes``; raise for NaN and infinity."""
    try:
        array = untrusted.read_array(path)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing; a feature folder needs it") from None
    except (ValueError, EOFError, OSError) as error:
        raise DatasetError(f"{path} cannot be read as a .npy array: {error}") from error
    if array.ndim != 2 or array.dtype not in [np.dtype(kind) for kind in dtypes]:
        names = " or ".join(np.dtype(kind).name for kind in dtypes)
        raise DatasetError(
            f"{path}: {array.dtype.name} array of shape {array.shape}, "
            f"expected {names} with two axes"
        )
    if array.dtype.kind == "f":
        for start in range(0, len(array), CHECK_ROWS):
            is_finite = np.isfinite(array[start : start + CHECK_ROWS]).all(axis=1)
            if not is_finite.all():
                row = start + int(np.flatnonzero(~is_finite)[0])
                raise NonFiniteError(
                    f"{path}: row {row} has NaN or infinity; extract the features again"
                )
    return torch.from_numpy(array)


def check_total(path: Path, rows: int, total: int, key: str) -> None:
    if rows != total:
        raise DatasetError(f"{path}: {rows} rows, but {key} of {INDEX_FILE} sums to {total}")


def differing_origins(training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> list[str]:
    """Return a note for each of model and frames that differs from those of training."""
    return [
        f"these features have {key} {evaluation[key]}, those of the training {training[key]}: "
        "scores will differ"
        for key in ("model", "frame_spec")
        if key in training and key in evaluation and training[key] != evaluation[key]
    ]
