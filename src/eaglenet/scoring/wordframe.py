"""Fast scorer of WordFrame: prepares each video once and skips padded words."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.layers.late_interaction import masked_max, words_or_sentence
from eaglenet.layers.masking import mean_pooling
from eaglenet.methods.wordframe import WordFrame
from eaglenet.scoring.scorer import FAST_FORMS, Precision, Scorer

PreparedVideos = dict[str, Tensor]
"""Tensors per video: unit ``tokens`` [videos, frames, dim] after self-attention, their ``mask``,
the unit ``mean`` frame, the hubness ``offset``, and ``weights`` of the tokens if frames are matched
to words too."""


class WordFrameScorer(Scorer):
    """Scorer with one matrix product of all real words with all frames of a tile."""

    def __init__(self, method: WordFrame, device: torch.device, precision: Precision) -> None:
        self.method = method
        self.precision = precision
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.tile_texts = 256 if device.type == "cuda" else 32
        self.tile_videos = 256 if device.type == "cuda" else 128

    def _prepare(self, video: VideoFeatures) -> PreparedVideos:
        full = video.to(video.frames.device, torch.float32)
        tokens = self.method.frame_tokens(full)
        mean = mean_pooling(full.frames, full.mask)
        prepared_videos = {
            "tokens": F.normalize(tokens, dim=-1).to(self.dtype),
            "mask": full.mask,
            "mean": mean,
            "offset": self.method.hubness_offsets(mean),
        }
        if self.method.config.both_ways:
            prepared_videos["weights"] = self.method.weights_of_frames(tokens, full.mask)
        return prepared_videos

    def _score(self, text: TextFeatures, prepared_videos: PreparedVideos) -> Tensor:
        config = self.method.config
        scores = -prepared_videos["offset"][None, :]
        if config.coarse:
            scores = F.normalize(text.sentence.float(), dim=-1) @ prepared_videos["mean"].T + scores
        if not config.interaction:
            return scores
        words, mask = words_or_sentence(text.to(text.sentence.device, torch.float32))
        # Up to the last real word of any text; padding may also lie before it.
        is_used = mask.any(dim=0)
        positions = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        num_words = max(int((positions * is_used).max()), 1)
        words, mask = words[:, :num_words], mask[:, :num_words]
        weights = self.method.weights_of_words(words, mask)
        unit = F.normalize(words, dim=-1).to(self.dtype)
        videos, frames, dim = prepared_videos["tokens"].shape
        cosines = unit.reshape(-1, dim) @ prepared_videos["tokens"].reshape(-1, dim).T
        cosines = cosines.float().view(len(words), num_words, videos, frames)
        # Padded frames and padded words are left out of the maxima.
        best_frame = masked_max(cosines, prepared_videos["mask"][None, None], dim=-1)
        interaction = torch.einsum("twv,tw->tv", best_frame, weights)
        if config.both_ways:
            best_word = masked_max(cosines, mask[:, :, None, None], dim=1)
            interaction = (
                interaction + torch.einsum("tvf,vf->tv", best_word, prepared_videos["weights"])
            ) / 2
        weight = self.method.interaction_weight()
        return scores + (interaction if weight is None else weight * interaction)


@dataclass(frozen=True)
class WordFrameForm:
    """Implementation of :class:`eaglenet.scoring.scorer.FastForm` for WordFrame."""

    method: WordFrame
    device: torch.device

    def factorised_scorer(self, precision: Precision) -> Scorer:
        return WordFrameScorer(self.method, self.device, precision)

    def kernel_scorer(self, precision: Precision) -> Scorer:
        return self.factorised_scorer(precision)

    def why_no_kernel(self, video: VideoFeatures) -> str | None:
        return "wordframe has no kernel; its score is one matrix product and a maximum"


def arrange(method: WordFrame, device: torch.device) -> WordFrameForm:
    """Return the fast form; every WordFrame has one."""
    return WordFrameForm(method, device)


FAST_FORMS.add(WordFrame.name, arrange)
