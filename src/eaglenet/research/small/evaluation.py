"""How well two towers find pictures and videos by sentences: mean of frames against sentence."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.encoders.compact import CompactEncoder
from eaglenet.research.evaluation.metrics import Metrics, retrieval_metrics
from eaglenet.research.small.banks import PairBank, plain_views

MAX_FRAMES = 12


@torch.no_grad()
def item_vectors(encoder: CompactEncoder, bank: PairBank) -> Float[Tensor, "items dim"]:
    """Unit mean of unit frames of every item; of at most 12 frames, evenly spread."""
    vision, size = encoder.vision, encoder.config.vision.image_size
    parts = [
        vision(vision.normalise(plain_views(part, size)))[:, 0].float()
        for part in bank.frames.split(512)
    ]
    frames = torch.cat(parts)
    vectors = []
    for first, count in zip(bank.first_frame.tolist(), bank.num_frames.tolist(), strict=True):
        rows = torch.linspace(0, count - 1, min(count, MAX_FRAMES)).round().long()
        vectors.append(F.normalize(frames[first + rows.to(frames.device)], dim=-1).mean(dim=0))
    return F.normalize(torch.stack(vectors), dim=-1)


@torch.no_grad()
def evaluate_pairs(encoder: CompactEncoder, bank: PairBank) -> Metrics:
    """Every sentence of a person is a query over all items of the bank."""
    spans = [tuple(span) for span in bank.people.tolist()]
    rows = torch.cat([torch.arange(start, stop) for start, stop in spans]).to(bank.device)
    owner = torch.cat(
        [torch.full((stop - start,), item) for item, (start, stop) in enumerate(spans)]
    )
    sentences = torch.cat(
        [encoder.encode_text(bank.tokens(part)).sentence.float() for part in rows.split(4096)]
    )
    scores = F.normalize(sentences, dim=-1) @ item_vectors(encoder, bank).T
    return retrieval_metrics(scores.cpu(), owner)


def evaluate_all(encoder: CompactEncoder, banks: Mapping[str, PairBank]) -> dict[str, Metrics]:
    """The metrics of each bank by its name."""
    return {name: evaluate_pairs(encoder, bank) for name, bank in banks.items()}


def recall_sum(results: Mapping[str, Metrics]) -> float:
    """What runs are chosen by: R@1 + R@5 + R@10 by text, the mean over the banks."""
    sums = [metrics.t2v.recall_sum for metrics in results.values()]
    return sum(sums) / max(len(sums), 1)
