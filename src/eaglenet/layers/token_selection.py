"""Selection of the best patches of a frame, with a differentiable top-k."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

SelectionGradient = Literal["diagonal", "jacobian"]
"""Backward pass of the perturbed top-k: the diagonal of its Jacobian, or all of it."""
SelectionContext = Literal["frame", "video"]
"""Context of the score of a patch: the class token of its frame, or those of all frames too."""


class _PerturbedTopK(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any,
        scores: Float[Tensor, "rows items"],
        noise: Float[Tensor, "rows samples items"],
        count: int,
        sigma: float,
        gradient: SelectionGradient,
    ) -> Float[Tensor, "rows count items"]:
        noisy_scores = scores[:, None, :] + sigma * noise
        # Sorted by position, not by score, so that row j means the same in all samples.
        indices = noisy_scores.topk(count, dim=-1).indices.sort(dim=-1).values
        context.save_for_backward(indices, noise)
        context.sigma, context.gradient = sigma, gradient
        return _mean_indicator(indices, scores.shape[-1], scores.dtype)

    @staticmethod
    def backward(
        context: Any, gradient: Float[Tensor, "rows count items"]
    ) -> tuple[Float[Tensor, "rows items"], None, None, None, None]:
        indices, noise = context.saved_tensors
        num_samples = noise.shape[1]
        # sum_{j,i} gradient[j,i] * indicator[s,j,i] needs only the selected entries.
        weights = gradient.take_along_dim(indices.transpose(1, 2), dim=2)  # [rows, count, samples]
        if context.gradient == "diagonal":
            selected_noise = noise.take_along_dim(indices, dim=2)  # [rows, samples, count]
            products = weights.transpose(1, 2) * selected_noise
            result = torch.zeros_like(noise[:, 0])
            result = result.scatter_add(1, indices.flatten(1), products.flatten(1))
        else:
            result = torch.einsum("rs,rsi->ri", weights.sum(dim=1), noise)
        return result / (num_samples * context.sigma), None, None, None, None


def _mean_indicator(
    indices: Int[Tensor, "rows samples count"], num_items: int, dtype: torch.dtype
) -> Float[Tensor, "rows count items"]:
    rows, num_samples, count = indices.shape
    weight = torch.full((), 1 / num_samples, dtype=dtype, device=indices.device)
    empty = torch.zeros(rows, count, num_items, dtype=dtype, device=indices.device)
    return empty.scatter_add(2, indices.transpose(1, 2), weight.expand(rows, count, num_samples))


def perturbed_top_k(
    scores: Float[Tensor, "rows items"],
    count: int,
    *,
    num_samples: int = 500,
    sigma: float = 0.05,
    generator: torch.Generator | None = None,
    noise: Float[Tensor, "samples items"] | Float[Tensor, "rows samples items"] | None = None,
    gradient: SelectionGradient = "diagonal",
) -> Float[Tensor, "rows count items"]:
    r"""Return a differentiable top-k: the mean of one-hot choices under Gaussian noise.

    .. math:: Y = \mathbb{E}_Z[\mathrm{topk}(x + \sigma Z)], \qquad
        \frac{\partial Y}{\partial x} = \mathbb{E}_Z[\mathrm{topk}(x + \sigma Z)\, Z^\top] / \sigma

    Row ``j`` of the result is the selected item with the ``j``-th lowest index.

    Args:
        generator: source of the noise; by default the generator of the device, which training
            seeds at each step.
        noise: noise for all rows, or for each row, instead of random draws.
        gradient: ``diagonal`` keeps only :math:`\partial Y_{ji} / \partial x_i`, as the official
            code of TS2-Net and UCoFiA does; ``jacobian`` is the whole estimate above.
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
    result: Tensor = _PerturbedTopK.apply(scores, draws, count, sigma, gradient)  # type: ignore[no-untyped-call]
    return result


def hard_top_k(
    scores: Float[Tensor, "rows items"], count: int
) -> Float[Tensor, "rows count items"]:
    """Return the best items as one-hot rows, ordered by index, without a gradient."""
    indices = scores.topk(count, dim=-1).indices.sort(dim=-1).values
    return _mean_indicator(indices[:, None, :], scores.shape[-1], scores.dtype)


class TokenSelection(nn.Module):
    r"""Selection of the class token and the best ``num_tokens`` patches per frame (TS2-Net).

    .. math:: u_i = \mathrm{GELU}(W_1\, \mathrm{LN}(x_i)), \quad
        \mathrm{score}_i = \tanh(w_3\, \mathrm{GELU}(W_2 [u_i; u_{cls}]))

    With ``context="video"`` (the evaluation code of UCoFiA) :math:`x_i` is :math:`[x_i; x_{cls}]`
    throughout the scorer, twice as wide, and :math:`u_{cls}` is summed over the frames of a video.

    Args:
        hard_at_inference: use the plain top-k in eval mode. Paper: the official code samples there
            too, so that its scores change from run to run.
        noise_seed: seed of the noise in eval mode without ``hard_at_inference``. All frames share
            the noise, so that the selection depends on the frame only.
        gradient: backward pass of the top-k (:func:`perturbed_top_k`).
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
        gradient: SelectionGradient = "diagonal",
        context: SelectionContext = "frame",
    ) -> None:
        super().__init__()
        self.context: SelectionContext = context
        width = dim if context == "frame" else 2 * dim
        hidden_dim = max(width // 2, 1)
        self.norm = nn.LayerNorm(width)
        self.local = nn.Sequential(nn.Linear(width, hidden_dim, bias=False), nn.GELU())
        self.scorer = nn.Sequential(
            nn.Linear(2 * hidden_dim, hidden_dim, bias=False),
            nn.GELU(),
            nn.Linear(hidden_dim, 1, bias=False),
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
        self.gradient: SelectionGradient = gradient

    @classmethod
    def of(cls, dim: int, config: Any, context: SelectionContext = "frame") -> TokenSelection:
        """Create the selection from the config of TS2-Net or UCoFiA."""
        return cls(
            dim,
            num_tokens=config.num_tokens,
            num_samples=config.num_samples,
            sigma=config.sigma,
            hard_at_inference=config.hard_selection,
            noise_seed=config.noise_seed,
            gradient=config.selection_gradient,
            context=context,
        )

    def scores(
        self,
        tokens: Float[Tensor, "frames tokens dim"],
        mask: Bool[Tensor, "videos num_frames"] | None = None,
    ) -> Float[Tensor, "frames patches"]:
        """Return the score of each patch; the class token (index 0) is context only.

        ``mask``: frames of each video that count as context, for ``context="video"``.
        """
        if self.context == "video":
            tokens = torch.cat([tokens, tokens[:, :1].expand_as(tokens)], dim=-1)
        local = self.local(self.norm(tokens))
        context = local[:, :1]
        if self.context == "video":
            assert mask is not None
            by_video = context.unflatten(0, mask.shape) * mask[..., None, None]
            context = by_video.sum(dim=1, keepdim=True).expand_as(by_video).flatten(0, 1)
        features = torch.cat([local, context.expand_as(local)], dim=-1)[:, 1:]
        return self.scorer(features).squeeze(-1)  # type: ignore[no-any-return]

    def _shared_noise(self, num_items: int) -> Float[Tensor, "samples items"]:
        """Draw noise on the CPU in float64, equal for every device and precision."""
        generator = torch.Generator().manual_seed(self.noise_seed)
        return torch.randn(self.num_samples, num_items, generator=generator, dtype=torch.float64)

    def indicators(
        self,
        scores: Float[Tensor, "frames patches"],
        noise: Float[Tensor, "frames samples patches"] | None = None,
    ) -> Float[Tensor, "frames selected patches"]:
        """Return the weights of patches in each selected token; one-hot for a hard selection."""
        # Under autocast, scores are in half precision, where small noise is rounded away.
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if noise is None and not self.training:
            if self.hard_at_inference:
                return hard_top_k(scores, self.num_tokens)
            noise = self._shared_noise(scores.shape[1])
        return perturbed_top_k(
            scores,
            self.num_tokens,
            num_samples=self.num_samples,
            sigma=self.sigma,
            generator=self.generator,
            noise=noise,
            gradient=self.gradient,
        )

    def forward(
        self,
        tokens: Float[Tensor, "frames tokens dim"],
        noise: Float[Tensor, "frames samples patches"] | None = None,
        mask: Bool[Tensor, "videos num_frames"] | None = None,
    ) -> Float[Tensor, "frames selected dim"]:
        """Return the class token, then the selected patches in the order of their positions.

        ``noise``: noise of each frame, also in eval mode, instead of random draws. ``mask``: as
        in :meth:`scores`.
        """
        indicators = self.indicators(self.scores(tokens, mask), noise)
        patches = torch.einsum("fki,fid->fkd", indicators.to(tokens.dtype), tokens[:, 1:])
        return torch.cat([tokens[:, :1], patches], dim=1)
