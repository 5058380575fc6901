"""Losses of two towers: pairs with soft targets, distillation, agreement with earlier vectors."""

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
    over the pairs with the same text as pair ``i`` (``is_same``; the identity without it) and
    ``M`` are unit vectors of the meaning of the texts; the rows of ``T`` are the targets of both
    directions.
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


def distillation_loss(
    pictures: Float[Tensor, "pairs dim"],
    targets: Float[Tensor, "pairs dim"],
    sentences: Float[Tensor, "pairs dim"],
    log_scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Distance of the image vectors, and of their similarities to the texts of the batch.

    ``mean(1 - cos(p, t)) + KL(softmax(a t s^T) || softmax(a p s^T))``, the divergence over the
    texts of an image and over the images of a text by halves, ``a = exp(log_scale)``; p: student,
    t: teacher, s: texts by the teacher's text tower, which is the student's too.
    """
    p, t, s = (F.normalize(part.float(), dim=-1) for part in (pictures, targets, sentences))
    scale = log_scale.detach().float().exp().clamp(max=100.0)
    distance = (1 - (p * t).sum(dim=-1)).mean()
    return distance + _divergence(scale * (p @ s.T), scale * (t @ s.T))


def agreement_loss(
    pictures: Float[Tensor, "pictures dim"],
    sentences: Float[Tensor, "sentences dim"],
    log_scale: Float[Tensor, ""],
    *,
    earlier_images: Float[Tensor, "pictures dim"],
    earlier_texts: Float[Tensor, "sentences dim"],
    scale: Float[Tensor, ""],
) -> Float[Tensor, ""]:
    r"""Change of the similarities between images without texts and the texts of a batch.

    ``KL(softmax(b v w^T) || softmax(a p s^T))``, over the texts of an image and over the images of
    a text by halves, ``a = exp(log_scale)``; v (``earlier_images``) and w (``earlier_texts``) are
    the unit vectors of the same images and texts before training, b (``scale``) the scale then.
    """
    p, s = F.normalize(pictures.float(), dim=-1), F.normalize(sentences.float(), dim=-1)
    ours = log_scale.float().exp().clamp(max=100.0) * (p @ s.T)
    return _divergence(ours, scale * (earlier_images.float() @ earlier_texts.float().T))


def _divergence(
    ours: Float[Tensor, "rows columns"], theirs: Float[Tensor, "rows columns"]
) -> Float[Tensor, ""]:
    """KL divergence of softmax(ours) from softmax(theirs): mean of rows and columns by halves."""
    parts = [
        F.kl_div(
            F.log_softmax(ours, dim=side),
            F.log_softmax(theirs, dim=side),
            reduction="sum",
            log_target=True,
        )
        / ours.shape[1 - side]
        for side in (0, 1)
    ]
    return (parts[0] + parts[1]) / 2
