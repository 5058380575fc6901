"""The loss of pairs: softmax over the batch, with a share for sentences of like meaning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def pair_loss(
    pictures: Float[Tensor, "pairs dim"],
    sentences: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
    *,
    is_same: Bool[Tensor, "pairs pairs"] | None = None,
    meanings: Float[Tensor, "pairs meaning"] | None = None,
    share: float = 0.0,
    temperature: float = 0.05,
) -> Float[Tensor, ""]:
    r"""Cross entropy both ways of ``exp(log_scale) cos(p_i, s_j)`` with soft targets.

    ``T = (1 - share) S + share softmax(M M^T / temperature)``, where row ``i`` of ``S`` is even
    over the pairs that have the very words of pair ``i`` (``is_same``; the identity without it)
    and ``M`` are unit vectors of what the sentences mean; the rows of ``T`` are the targets of
    both directions.
    """
    p, s = F.normalize(pictures.float(), dim=-1), F.normalize(sentences.float(), dim=-1)
    logits = log_scale.float().exp().clamp(max=100.0) * (p @ s.T)
    rows, columns = F.log_softmax(logits, dim=1), F.log_softmax(logits, dim=0)
    if is_same is None:
        hard = -(rows.diagonal().mean() + columns.diagonal().mean()) / 2
    else:
        even = is_same / is_same.sum(dim=1, keepdim=True)
        hard = -((even * rows).sum(dim=1).mean() + (even * columns.T).sum(dim=1).mean()) / 2
    if meanings is None or not share:
        return hard
    with torch.no_grad():
        targets = F.softmax((meanings @ meanings.T).float() / temperature, dim=1)
    soft = -((targets * rows).sum(dim=1).mean() + (targets * columns.T).sum(dim=1).mean()) / 2
    return (1 - share) * hard + share * soft
