"""Keep the few patches of a frame that matter: a scorer and a top-k one can train through."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class _PerturbedTopK(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        scores: Float[Tensor, "rows items"],
        noise: Float[Tensor, "rows samples items"],
        count: int,
        sigma: float,
    ) -> Float[Tensor, "rows count items"]:
        perturbed = scores[:, None, :] + sigma * noise
        # Sorted by position, not by score, so that slot j has one meaning over all samples.
        chosen = perturbed.topk(count, dim=-1).indices.sort(dim=-1).values
        context.save_for_backward(chosen, noise)
        context.sigma = sigma
        return _mean_indicator(chosen, scores.shape[-1], scores.dtype)

    @staticmethod
    def backward(
        context: Any, gradient: Float[Tensor, "rows count items"]
    ) -> tuple[Float[Tensor, "rows items"], None, None, None]:
        chosen, noise = context.saved_tensors
        num_samples = noise.shape[1]
        # sum_{j,i} gradient[j,i] * indicator[s,j,i] needs only the entries that were chosen.
        weight = gradient.take_along_dim(chosen.transpose(1, 2), dim=2).sum(dim=1)
        result = torch.einsum("rs,rsi->ri", weight, noise) / (num_samples * context.sigma)
        return result, None, None, None


def _mean_indicator(
    chosen: Int[Tensor, "rows samples count"], num_items: int, dtype: torch.dtype
) -> Float[Tensor, "rows count items"]:
    rows, num_samples, count = chosen.shape
    share = torch.full((), 1 / num_samples, dtype=dtype, device=chosen.device)
    empty = torch.zeros(rows, count, num_items, dtype=dtype, device=chosen.device)
    return empty.scatter_add(2, chosen.transpose(1, 2), share.expand(rows, count, num_samples))


def perturbed_top_k(
    scores: Float[Tensor, "rows items"],
    count: int,
    *,
    num_samples: int = 500,
    sigma: float = 0.05,
    generator: torch.Generator | None = None,
    noise: Float[Tensor, "samples items"] | None = None,
) -> Float[Tensor, "rows count items"]:
    r"""Differentiable top-k: the mean of one-hot choices under Gaussian noise.

    .. math:: Y = \mathbb{E}_Z[\mathrm{topk}(x + \sigma Z)], \qquad
        \frac{\partial Y}{\partial x} = \mathbb{E}_Z[\mathrm{topk}(x + \sigma Z)\, Z^\top] / \sigma

    Slot ``j`` holds the chosen item of ``j``-th lowest position. ``generator`` None draws from
    torch's own generator of the device, which a training run seeds at each step. ``noise`` is
    one bank of draws for all rows; nothing is drawn then.
    """
    num_rows, num_items = scores.shape
    if noise is None:
        draws = torch.randn(
            num_rows,
            num_samples,
            num_items,
            dtype=scores.dtype,
            device=scores.device,
            generator=generator,
        )
    else:
        draws = noise.to(scores).expand(num_rows, -1, -1)
    result: Tensor = _PerturbedTopK.apply(scores, draws, count, sigma)  # type: ignore[no-untyped-call]
    return result


def hard_top_k(
    scores: Float[Tensor, "rows items"], count: int
) -> Float[Tensor, "rows count items"]:
    """One-hot choice of the best items, ordered by position. Deterministic; no gradient."""
    chosen = scores.topk(count, dim=-1).indices.sort(dim=-1).values
    return _mean_indicator(chosen[:, None, :], scores.shape[-1], scores.dtype)


class TokenSelection(nn.Module):
    r"""The class token and the best ``num_tokens`` patches of each frame (TS2-Net).

    .. math:: u_i = \mathrm{GELU}(W_1\, \mathrm{LN}(x_i)), \quad
        \mathrm{score}_i = \tanh(w_3\, \mathrm{GELU}(W_2 [u_i; u_{cls}]))

    Args:
        hard_at_inference: plain top-k in eval mode. Paper: the released code samples there too,
            so its scores change from run to run.
        noise_seed: of the draws in eval mode where that is off. They are one bank for all frames,
            so that what is kept of a frame depends on the frame alone.
    """

    def __init__(
        self,
        dim: int,
        *,
        num_tokens: int = 3,
        num_samples: int = 500,
        sigma: float = 0.05,
        hard_at_inference: bool = True,
        noise_seed: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        hidden = max(dim // 2, 1)
        self.norm = nn.LayerNorm(dim)
        self.local = nn.Sequential(nn.Linear(dim, hidden, bias=False), nn.GELU())
        self.scorer = nn.Sequential(
            nn.Linear(2 * hidden, hidden, bias=False),
            nn.GELU(),
            nn.Linear(hidden, 1, bias=False),
            nn.Tanh(),
        )
        for layer in (*self.local, *self.scorer):
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
        self.num_tokens = num_tokens
        self.num_samples = num_samples
        self.sigma = sigma
        self.hard_at_inference = hard_at_inference
        self.noise_seed = noise_seed
        self.generator = generator

    def scores(self, tokens: Float[Tensor, "frames tokens dim"]) -> Float[Tensor, "frames patches"]:
        """How much each patch matters; the class token (position 0) is context, not a candidate."""
        local = self.local(self.norm(tokens))
        context = local[:, :1].expand_as(local)
        joined = torch.cat([local, context], dim=-1)[:, 1:]
        return self.scorer(joined).squeeze(-1)  # type: ignore[no-any-return]

    def _bank(self, num_items: int) -> Float[Tensor, "samples items"]:
        """Drawn on the host in float64: the same numbers on every device, in every precision."""
        generator = torch.Generator().manual_seed(self.noise_seed)
        return torch.randn(self.num_samples, num_items, generator=generator, dtype=torch.float64)

    def forward(
        self, tokens: Float[Tensor, "frames tokens dim"]
    ) -> Float[Tensor, "frames kept dim"]:
        """Class token first, then the kept patches in the order of their positions."""
        scores = self.scores(tokens)
        # Under autocast the scores come in half precision, where small noise is rounded away.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if not self.training and self.hard_at_inference:
            choice = hard_top_k(scores, self.num_tokens)
        else:
            choice = perturbed_top_k(
                scores,
                self.num_tokens,
                num_samples=self.num_samples,
                sigma=self.sigma,
                generator=self.generator,
                noise=None if self.training else self._bank(scores.shape[1]),
            )
        kept = torch.einsum("fki,fid->fkd", choice.to(tokens.dtype), tokens[:, 1:])
        return torch.cat([tokens[:, :1], kept], dim=1)
