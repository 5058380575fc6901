"""Stored features as data: texts and videos that no tower has to encode again.

`data.feature_folder` reads and writes the folders they lie in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from eaglenet.data.records import RetrievalProtocol, stable_order
from eaglenet.errors import DatasetError, UsageError
from eaglenet.types import TextFeatures, VideoFeatures


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
