"""Softmax, attention, mean and batch normalisation with padding."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError

Padding = Literal["masked", "official"]
"""Treatment of padded words, padded frames and missing experts in a score.

``masked``: they are left out, so that a score depends on its pair only.
``official``: as in the code of the authors, to reproduce their numbers.
"""
PADDING_LOGIT = -1e4
"""Attention logit of padding; in the range of float16."""


def check_heads(dim: int, num_heads: int) -> None:
    """Raise ``ConfigError`` unless ``num_heads`` divides ``dim``."""
    if num_heads < 1 or dim % num_heads:
        raise ConfigError(
            f"{num_heads} heads do not divide a width of {dim}; choose a divisor of {dim}"
        )


def effective_mask(mask: Bool[Tensor, "*any"], padding: Padding) -> Bool[Tensor, "*any"]:
    """Return the mask, or all True to reproduce code without masks."""
    return torch.ones_like(mask) if padding == "official" else mask


def masked_softmax(
    logits: Float[Tensor, "*any entries"], mask: Bool[Tensor, "..."] | None
) -> Float[Tensor, "*any entries"]:
    """Return the softmax over the last axis where ``mask`` is true, and 0 elsewhere.

    A row without a true entry is all 0, not NaN. Masked logits become the lowest finite number of
    the type, because a constant such as -1e18 overflows in half precision.
    """
    if mask is None:
        return logits.softmax(dim=-1)
    weights = logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim=-1)
    return weights.masked_fill(~mask, 0.0)


def attention_bias(
    mask: Bool[Tensor, "rows tokens"], dtype: torch.dtype
) -> Float[Tensor, "rows 1 1 tokens"]:
    """Return the term to add to attention logits: 0 for real tokens, a large negative for padding.

    It is finite, so that a row without a real token attends to its padding instead of becoming
    NaN. Beside a real token, the exponential of a padded one is exactly 0.
    """
    bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    return bias.masked_fill(~mask, PADDING_LOGIT)[:, None, None, :]


def frame_weights(
    mask: Bool[Tensor, "videos frames"], dtype: torch.dtype
) -> Float[Tensor, "videos frames"]:
    """Return the weights that average real frames: ``mask / number of real frames``."""
    weights = mask.to(dtype)
    return weights / weights.sum(dim=-1, keepdim=True).clamp_min(1.0)


def masked_mean(
    values: Float[Tensor, "rows entries dim"], mask: Bool[Tensor, "rows entries"]
) -> Float[Tensor, "rows dim"]:
    """Return the mean of the real entries; 0 if there are none."""
    weights = mask.to(values.dtype)[..., None]
    return (values * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1.0)


def real_first(
    mask: Bool[Tensor, "videos frames"],
) -> tuple[Int[Tensor, "videos frames"], Int[Tensor, "videos frames"]]:
    """Return indices that move real frames to the front, and indices that restore the order."""
    order = (~mask).long().argsort(dim=1, stable=True)
    return order, order.argsort(dim=1)


def first_right_video(positives: Bool[Tensor, "texts videos"]) -> Int[Tensor, "texts"]:
    """Return the first video that belongs to each text."""
    return positives.to(torch.uint8).argmax(dim=1)


def mean_pooling(
    frames: Float[Tensor, "videos frames dim"], mask: Bool[Tensor, "videos frames"]
) -> Float[Tensor, "videos dim"]:
    r"""Return the unit mean of unit frames, without padding (parameter-free head of CLIP4Clip).

    .. math:: v = \mathrm{unit}\Big(\frac{1}{M} \sum_{m=1}^{M} \hat f_m\Big)

    A video without a real frame becomes the zero vector, so that its scores are 0 instead of NaN.
    """
    weights = frame_weights(mask, frames.dtype)[..., None]
    # 1e-12 is 0 in half precision, where a padded frame of zeros would become NaN.
    epsilon = max(1e-12, torch.finfo(frames.dtype).tiny)
    mean = (F.normalize(frames, dim=-1, eps=epsilon) * weights).sum(dim=1)
    return F.normalize(mean, dim=-1, eps=epsilon)


class MaskedBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d whose statistics leave out padding and missing experts.

    In training, padded rows become 0, and a batch with fewer than two real rows uses the running
    statistics. A batch that is encoded in chunks (``training.accumulate``) uses the statistics of
    each chunk.
    """

    def forward(
        self, values: Float[Tensor, "*rows dim"], mask: Bool[Tensor, "*rows"] | None = None
    ) -> Float[Tensor, "*rows dim"]:
        flat = values.reshape(-1, values.shape[-1])
        if not self.training:
            return self._apply_running_statistics(flat).view_as(values)
        real = flat if mask is None else flat[mask.reshape(-1)]
        if len(real) < 2:
            return self._apply_running_statistics(flat).view_as(values)
        normalised_rows = super().forward(real)
        if mask is None:
            return normalised_rows.view_as(values)
        is_real = mask.reshape(-1, 1)
        return torch.zeros_like(flat).masked_scatter(is_real, normalised_rows).view_as(values)

    def _apply_running_statistics(
        self, flat: Float[Tensor, "rows dim"]
    ) -> Float[Tensor, "rows dim"]:
        return nn.functional.batch_norm(
            flat, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )
