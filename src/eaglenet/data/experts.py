"""Folders of features of many experts: what several pretrained models saw of the same videos.

Such a folder is a feature folder (`data.feature_folder`) with more files, so every method that
reads frames and sentences reads it too. ``index.json`` says more:

- ``experts``: ``{name: {"dim": width, "model": who made it, "seconds_per_token": number or null}}``
- ``frames``: the expert whose tokens are ``frame_features.npy``; no video may miss it
- ``words``: ``{name: {"dim": width, "model": who made it}}``
- ``graphs``: the name of the words that the graphs point at

and beside it lie, for every other expert, ``expert_NAME.npy`` [all tokens, dim] (videos after each
other) with ``expert_NAME_counts.npy`` [videos], where 0 says that the video misses the expert;
``expert_NAME_seconds.npy`` [all tokens], -1 for unknown; for every kind of words ``words_NAME.npy``
and ``words_NAME_counts.npy`` [texts]; ``token_ids.npy`` and ``token_ids_counts.npy``;
``graphs.npz`` (spans, roles, edges); ``teacher_NAME_text.npy`` [texts, width] and
``teacher_NAME_video.npy`` [videos, width]. All but the experts' own files are optional.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from eaglenet.data.expert_files import (
    PackedTokens,
    check_width,
    described,
    read_graphs,
    read_ids,
    read_packed,
    read_seconds,
    read_teachers,
)
from eaglenet.data.feature_folder import FRAMES_FILE, INDEX_FILE, load_feature_folder, read_index
from eaglenet.data.features import FeatureSplit
from eaglenet.errors import DatasetError, UsageError
from eaglenet.types import Expert, TextFeatures, TextGraph, Tokens, VideoFeatures


@dataclass(frozen=True)
class ExpertSplit(FeatureSplit):
    """A feature split whose videos come with experts, and whose texts may come with more.

    ``video_row`` says which rows of the folder this split's videos are; ``text_row`` does so of
    its texts. ``chosen_words`` names the words that :meth:`text_batch` gives.
    """

    video_row: Int[Tensor, "videos"] = field(
        default_factory=lambda: torch.zeros(0, dtype=torch.int64)
    )
    experts: Mapping[str, PackedTokens] = field(default_factory=dict)
    frames_expert: str = ""
    frame_seconds: Float[Tensor, "rows"] | None = None
    words: Mapping[str, PackedTokens] = field(default_factory=dict)
    chosen_words: str = ""
    token_ids: PackedTokens | None = None
    graphs: TextGraph | None = None
    text_teachers: Tensor | None = None
    video_teachers: Tensor | None = None

    @property
    def expert_widths(self) -> dict[str, int]:
        """Every expert and its width, the frames among them, in alphabetical order."""
        widths = {name: packed.values.shape[1] for name, packed in self.experts.items()}
        return dict(sorted({**widths, self.frames_expert: self.frame_dim}.items()))

    @property
    def words_dim(self) -> int:
        """Width of the chosen words; of sentences, where the folder has no words."""
        return self.words[self.chosen_words].values.shape[1] if self.words else self.text_dim

    def text_batch(self, indices: Sequence[int] | Tensor) -> TextFeatures:
        """Sentences with whatever else the folder has of texts."""
        features = super().text_batch(indices)
        rows = self.text_row[self._indices(indices)]
        if self.words:
            words = self.words[self.chosen_words].gather(rows)
            features = replace(features, words=words.values, words_mask=words.mask)
        if self.token_ids is not None:
            places, mask = self.token_ids.rows_of(rows)
            ids = self.token_ids.values[places, 0].long().masked_fill(~mask, 0)
            features = replace(features, tokens=Tokens(ids, mask))
        if self.graphs is not None:
            features = replace(features, graph=self.graphs[rows])
        if self.text_teachers is not None:
            features = replace(features, teachers=self.text_teachers[rows].float())
        return features

    def video_batch(self, indices: Sequence[int] | Tensor) -> VideoFeatures:
        """Frames, and all experts by name; the frames are one of them."""
        features = super().video_batch(indices)
        rows = self.video_row[self._indices(indices)]
        experts = {name: packed.gather(rows) for name, packed in self.experts.items()}
        experts[self.frames_expert] = Expert(features.frames, features.mask, self._seconds(indices))
        if self.video_teachers is not None:
            features = replace(features, teachers=self.video_teachers[rows].float())
        return replace(features, experts=dict(sorted(experts.items())))

    def _seconds(self, indices: Sequence[int] | Tensor) -> Tensor | None:
        if self.frame_seconds is None:
            return None
        chosen = self._indices(indices)
        packed = PackedTokens(
            self.packed_frames, self.frame_start, self.frame_count, self.frame_seconds
        )
        rows, mask = packed.rows_of(chosen)
        missing = self.max_frames - rows.shape[1]
        seconds = self.frame_seconds[rows].masked_fill(~mask, -1.0)
        return torch.nn.functional.pad(seconds, (0, missing), value=-1.0)

    def to(self, device: torch.device | str) -> ExpertSplit:
        moved = super().to(device)
        inner: dict[str, Any] = {
            "experts": {name: packed.to(device) for name, packed in self.experts.items()},
            "words": {name: packed.to(device) for name, packed in self.words.items()},
        }
        for name in ("token_ids", "graphs"):
            value = getattr(self, name)
            inner[name] = None if value is None else value.to(device)
        return cast(ExpertSplit, replace(moved, **inner))

    def select(self, video_indices: Sequence[int] | Tensor) -> ExpertSplit:
        chosen = torch.as_tensor(video_indices, dtype=torch.int64)
        part = cast(ExpertSplit, super().select(chosen))
        return replace(part, video_row=self.video_row[chosen.to(self.device)])


def load_expert_folder(folder: Path | str, *, words: str = "") -> ExpertSplit:
    """Read and check a folder of experts.

    A plain feature folder gives one expert, its frames. ``words`` chooses among several kinds.
    """
    folder = Path(folder)
    index = read_index(folder)
    whole = load_feature_folder(folder)
    counts = (whole.num_videos, whole.num_texts)
    found = described(index, "experts", folder)
    frames_name = str(index.get("frames") or "frames")
    if found and frames_name not in found:
        raise DatasetError(
            f"{folder / INDEX_FILE}: frames is {frames_name!r}, which is not among the experts "
            f"{', '.join(found)}"
        )
    if found:
        check_width(folder / FRAMES_FILE, whole.frame_dim, found[frames_name])
    experts = {
        name: read_packed(folder, f"expert_{name}", counts[0], entry)
        for name, entry in sorted(found.items())
        if name != frames_name
    }
    kinds = {
        name: read_packed(folder, f"words_{name}", counts[1], entry, least=1)
        for name, entry in described(index, "words", folder).items()
    }
    if words and words not in kinds:
        raise UsageError(
            f"{folder} has no words {words!r}; it has {', '.join(kinds) or 'sentences only'}"
        )
    chosen = words or next(iter(kinds), "")
    teachers = read_teachers(folder, counts)
    return ExpertSplit(
        **{name: getattr(whole, name) for name in whole.__dataclass_fields__},
        video_row=torch.arange(counts[0]),
        experts=experts,
        frames_expert=frames_name,
        frame_seconds=read_seconds(folder, f"expert_{frames_name}", len(whole.packed_frames)),
        words=kinds,
        chosen_words=chosen,
        token_ids=read_ids(folder, counts[1]),
        graphs=read_graphs(folder, counts[1], kinds, str(index.get("graphs") or chosen)),
        text_teachers=teachers[0],
        video_teachers=teachers[1],
    )
