"""The loss of pairs: softmax over the batch, with a share for sentences of like meaning."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def pair_loss(
    pictures: Float[Tensor, "pairs dim"],
    sentences: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
    *,
    meanings: Float[Tensor, "pairs meaning"] | None = None,
    share: float = 0.0,
    temperature: float = 0.05,
) -> Float[Tensor, ""]:
    r"""Cross entropy both ways of ``exp(log_scale) cos(p_i, s_j)`` with soft targets.

    ``T = (1 - share) I + share softmax(M M^T / temperature)``, where ``M`` are unit vectors of what
    the sentences mean; the rows of ``T`` are the targets of both directions.
    """
    p, s = F.normalize(pictures.float(), dim=-1), F.normalize(sentences.float(), dim=-1)
    logits = log_scale.float().exp().clamp(max=100.0) * (p @ s.T)
    rows, columns = F.log_softmax(logits, dim=1), F.log_softmax(logits, dim=0)
    hard = -(rows.diagonal().mean() + columns.diagonal().mean()) / 2
    if meanings is None or not share:
        return hard
    with torch.no_grad():
        targets = F.softmax((meanings @ meanings.T).float() / temperature, dim=1)
    soft = -((targets * rows).sum(dim=1).mean() + (targets * columns.T).sum(dim=1).mean()) / 2
    return (1 - share) * hard + share * soft
