"""The loss of a student tower that sees pictures as its teacher sees them."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def distillation_loss(
    pictures: Float[Tensor, "pairs dim"],
    taught: Float[Tensor, "pairs dim"],
    sentences: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Distance of the vectors, and of what the batch's sentences make of them.

    ``mean(1 - cos(p, t)) + KL(softmax(a t s^T) || softmax(a p s^T))``, the divergence over the
    sentences of a picture and over the pictures of a sentence by halves, ``a = exp(log_scale)``;
    p: student, t: teacher, s: sentences of the teacher's text tower, which the student keeps.
    """
    p, t, s = (F.normalize(part.float(), dim=-1) for part in (pictures, taught, sentences))
    scale = log_scale.detach().float().exp().clamp(max=100.0)
    ours, theirs = scale * (p @ s.T), scale * (t @ s.T)
    divergence = sum(
        F.kl_div(
            F.log_softmax(ours, dim=side),
            F.log_softmax(theirs, dim=side),
            reduction="sum",
            log_target=True,
        )
        for side in (0, 1)
    )
    distance = (1 - (p * t).sum(dim=-1)).mean()
    result: Tensor = distance + divergence / (2 * len(p))
    return result
