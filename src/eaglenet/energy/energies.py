"""Energies of text-video pairs, low for matching pairs, and their training loss.

An energy is computed for every text-frame pair and pooled over the frames of a video. Its gradient
has a closed form, so the Langevin sampler needs no automatic differentiation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from eaglenet.core.types import MIN_NORM

EnergyPooling = Literal["mean", "max", "min", "global"]


class Energy(nn.Module, ABC):
    """``E(t, F)``, pooled over frames: ``mean`` (paper eqs. 12-14), ``max`` or ``min`` (4.3.3).

    ``global`` is ``E(t, v)`` of the pooling ablation (table 5): the caller passes the fused video
    as the only frame. ``bias`` is described by each subclass that has one.
    """

    def __init__(self, dim: int, *, pooling: EnergyPooling = "mean", bias: bool = True) -> None:
        super().__init__()
        self.pooling = pooling

    @abstractmethod
    def frame_energies(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> Float[Tensor, "pairs frames"]:
        """Return the energy of each frame with the text of its pair."""

    @abstractmethod
    def all_frame_energies(
        self, text: Float[Tensor, "texts dim"], frames: Float[Tensor, "videos frames dim"]
    ) -> Float[Tensor, "texts videos frames"]:
        """Return the energy of each frame of every video with every text."""

    @abstractmethod
    def gradients(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> tuple[Float[Tensor, "pairs dim"], Float[Tensor, "pairs frames dim"]]:
        """Return ``dE/dt`` and ``dE/dF`` of matched pairs, in closed form and without a graph."""

    def forward(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> Float[Tensor, "pairs"]:
        """Return the energy of matched pairs."""
        return self._pool(self.frame_energies(text, frames), None)

    def all_pairs(
        self,
        text: Float[Tensor, "texts dim"],
        frames: Float[Tensor, "videos frames dim"],
        mask: Bool[Tensor, "videos frames"] | None = None,
    ) -> Float[Tensor, "texts videos"]:
        """Return the energy of every text with every video."""
        return self._pool(self.all_frame_energies(text, frames), mask)

    def _pool(
        self, energies: Float[Tensor, "*pairs frames"], mask: Bool[Tensor, "..."] | None
    ) -> Float[Tensor, "*pairs"]:
        return (energies * self.frame_weights(energies, mask)).sum(dim=-1)

    @torch.no_grad()
    def frame_weights(
        self, energies: Float[Tensor, "*pairs frames"], mask: Bool[Tensor, "..."] | None = None
    ) -> Float[Tensor, "*pairs frames"]:
        """Return ``dE(t, F) / dE(t, f_m)``: 1/M, or 1 for the first frame with extreme energy."""
        if self.pooling in ("mean", "global"):
            if mask is None:
                return torch.full_like(energies, 1.0 / energies.shape[-1])
            weights = mask.to(energies.dtype)
            weights = weights / weights.sum(dim=-1, keepdim=True).clamp_min(1.0)
            return weights.expand_as(energies)
        signed_energies = energies if self.pooling == "max" else -energies
        if mask is not None:
            signed_energies = signed_energies.masked_fill(~mask, torch.finfo(energies.dtype).min)
        best = signed_energies.argmax(dim=-1, keepdim=True)
        weights = torch.zeros_like(energies).scatter_(-1, best, 1.0)
        return weights if mask is None else weights.masked_fill(~mask, 0.0)


class DirectionEnergy(Energy):
    """``-g(t/||t||) . f / ||f||``: a frame has low energy along the direction of a text."""

    def direction(self, text: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        """Return the direction of frames with the lowest energy."""
        return self._project(_unit_and_length(text)[0])

    def frame_energies(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> Float[Tensor, "pairs frames"]:
        return -torch.einsum("nd,nfd->nf", self.direction(text), _unit_and_length(frames)[0])

    def all_frame_energies(
        self, text: Float[Tensor, "texts dim"], frames: Float[Tensor, "videos frames dim"]
    ) -> Float[Tensor, "texts videos frames"]:
        return -torch.einsum("td,vfd->tvf", self.direction(text), _unit_and_length(frames)[0])

    @torch.no_grad()
    def gradients(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> tuple[Float[Tensor, "pairs dim"], Float[Tensor, "pairs frames dim"]]:
        # Few kernels, because the sampler calls this in each step: the components of the gradient
        # along the unit frames are the energies themselves.
        unit_text, text_length = _unit_and_length(text)
        unit_frames, frame_length = _unit_and_length(frames)
        direction = self._project(unit_text)
        energies = -torch.einsum("nd,nfd->nf", direction, unit_frames)
        weights = self.frame_weights(energies)[..., None]
        across = torch.addcmul(direction[:, None], energies[..., None], unit_frames)
        to_frames = across * (-weights / frame_length)
        to_unit = self._back_to_text((-weights * unit_frames).sum(dim=1))
        along = (to_unit * unit_text).sum(dim=-1, keepdim=True)
        to_text = torch.addcmul(to_unit, along, unit_text, value=-1) / text_length
        return to_text, to_frames

    @abstractmethod
    def _project(self, unit_text: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        """Return ``g``, the direction of a unit text."""

    @abstractmethod
    def _back_to_text(self, gradient: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        """Convert a gradient with respect to g(t) to one with respect to t."""


class BilinearEnergy(DirectionEnergy):
    """``-(W t/||t|| + b) . f / ||f||`` (paper eq. 13).

    bias: adds ``b``. Paper: none; the released code has one.
    """

    def __init__(self, dim: int, *, pooling: EnergyPooling = "mean", bias: bool = True) -> None:
        super().__init__(dim, pooling=pooling, bias=bias)
        self.projection = nn.Linear(dim, dim, bias=bias)

    def _project(self, unit_text: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        projection: Tensor = self.projection(unit_text)
        return projection

    def _back_to_text(self, gradient: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        return gradient @ self.projection.weight


class CosineEnergy(DirectionEnergy):
    """``-cos(t, f)`` (paper eq. 12): bilinear with the identity, without parameters."""

    def _project(self, unit_text: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        return unit_text

    def _back_to_text(self, gradient: Float[Tensor, "pairs dim"]) -> Float[Tensor, "pairs dim"]:
        return gradient


class PerceptronEnergy(Energy):
    """``w . ReLU(W_f f + W_t t + b) + c``: an MLP on ``[f || t]`` (paper eq. 14).

    bias: adds an output bias ``c``. It cancels in the difference of energies and learns only
    through the magnitude penalty, so it is left out if that penalty has no weight.
    """

    def __init__(self, dim: int, *, pooling: EnergyPooling = "mean", bias: bool = True) -> None:
        super().__init__(dim, pooling=pooling, bias=bias)
        self.hidden = nn.Linear(2 * dim, dim)
        self.output = nn.Linear(dim, 1, bias=bias)

    def _sides(self, text: Tensor, frames: Tensor) -> tuple[Tensor, Tensor]:
        """Return the contributions of text and frames to the hidden layer."""
        frame_weight, text_weight = self.hidden.weight.chunk(2, dim=1)
        return F.linear(text, text_weight, self.hidden.bias), F.linear(frames, frame_weight)

    def frame_energies(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> Float[Tensor, "pairs frames"]:
        text_side, frame_side = self._sides(text, frames)
        energies: Tensor = self.output(F.relu(text_side[:, None] + frame_side))
        return energies.squeeze(-1)

    def all_frame_energies(
        self, text: Float[Tensor, "texts dim"], frames: Float[Tensor, "videos frames dim"]
    ) -> Float[Tensor, "texts videos frames"]:
        text_side, frame_side = self._sides(text, frames)
        energies: Tensor = self.output(F.relu(text_side[:, None, None] + frame_side))
        return energies.squeeze(-1)

    @torch.no_grad()
    def gradients(
        self, text: Float[Tensor, "pairs dim"], frames: Float[Tensor, "pairs frames dim"]
    ) -> tuple[Float[Tensor, "pairs dim"], Float[Tensor, "pairs frames dim"]]:
        text_side, frame_side = self._sides(text, frames)
        hidden_states = text_side[:, None] + frame_side
        energies = self.output(F.relu(hidden_states)).squeeze(-1)
        weights = self.frame_weights(energies)[..., None]
        to_hidden = weights * (hidden_states > 0) * self.output.weight[0]
        frame_weight, text_weight = self.hidden.weight.chunk(2, dim=1)
        return to_hidden.sum(dim=1) @ text_weight, to_hidden @ frame_weight


ENERGIES: dict[str, type[Energy]] = {
    "cosine": CosineEnergy,
    "bilinear": BilinearEnergy,
    "mlp": PerceptronEnergy,
}


def _unit_and_length(
    vectors: Float[Tensor, "*any dim"],
) -> tuple[Float[Tensor, "*any dim"], Float[Tensor, "*any 1"]]:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(MIN_NORM)
    return vectors / length, length


def contrast(
    positive: Float[Tensor, "*positives"],
    negative: Float[Tensor, "*negatives"],
    *,
    penalty: float = 1.0,
    positive_mask: Bool[Tensor, "*positives"] | None = None,
    negative_mask: Bool[Tensor, "*negatives"] | None = None,
) -> Float[Tensor, ""]:
    """Return ``mean E+ - mean E- + c (mean E+^2 + mean E-^2)`` (paper eq. 15, appendix D.4).

    The masks mark the pairs of each kind.
    """
    difference = _mean(positive, positive_mask) - _mean(negative, negative_mask)
    size = _mean(positive.square(), positive_mask) + _mean(negative.square(), negative_mask)
    return difference + penalty * size


def energy_matching_loss(
    pair_energies: Float[Tensor, "texts videos"],
    positives: Bool[Tensor, "texts videos"],
    sampled_energies: Float[Tensor, "samples"],
    *,
    penalty: float = 1.0,
    in_batch: bool = False,
) -> Float[Tensor, ""]:
    """Return the contrast of matching pairs with sampled pairs.

    in_batch: average it with the contrast of matching and other pairs of the batch (released
        code). Paper: sampled pairs only.
    """
    sampled_loss = contrast(
        pair_energies, sampled_energies, penalty=penalty, positive_mask=positives
    )
    if not in_batch:
        return sampled_loss
    in_batch_loss = contrast(
        pair_energies,
        pair_energies,
        penalty=penalty,
        positive_mask=positives,
        negative_mask=~positives,
    )
    return (sampled_loss + in_batch_loss) / 2


def _mean(values: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return values.mean()
    valid_values = torch.where(mask, values, torch.zeros_like(values))
    return valid_values.sum() / mask.sum().clamp_min(1)
