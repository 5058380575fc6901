"""Fast scorers of EagleNet."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.scoring.eaglenet import factorised
from eaglenet.scoring.eaglenet.factorised import PreparedVideos, RadiusSubspace
from eaglenet.scoring.eaglenet.plan import Plan, plan_of
from eaglenet.scoring.scorer import FAST_FORMS, Precision, Scorer, fixed_precision

KERNEL_TILE_BYTES = 2 * 2**30
"""Maximum size of the projections of a tile; a twentieth of the GPU memory if that is more."""


class FactorisedScorer(Scorer):
    """Factorised scorer of EagleNet in plain PyTorch, for any device."""

    def __init__(self, plan: Plan, precision: Precision) -> None:
        self.precision = precision
        self.dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self.plan = plan
        self.fast = replace(plan, graph=_cast(plan.graph, self.dtype))
        on_device = plan.noise.is_cuda
        self.subspace: RadiusSubspace | None = None
        self.tile_texts = 32 if on_device else 8
        self.tile_videos = 256 if on_device else 128

    def _prepare(self, video: VideoFeatures) -> PreparedVideos:
        full_precision = video.to(video.frames.device, torch.float32)
        return factorised.round_messages(factorised.prepare(self.plan, full_precision), self.dtype)

    def _score(self, text: TextFeatures, prepared_videos: PreparedVideos) -> Tensor:
        project = None if self.subspace is None else self.subspace.project
        return factorised.score_tile(self.fast, text.sentence.float(), prepared_videos, project)

    def allow_shortcuts(self) -> None:
        """Use :class:`RadiusSubspace` on a CPU: exact to 1e-5.

        The last digit of a score may then depend on earlier calls.
        """
        super().allow_shortcuts()
        if self.precision == "fp32" and not self.plan.noise.is_cuda and self.plan.graph.layers:
            self.subspace = RadiusSubspace(self.plan)


class KernelScorer(Scorer):
    """Scorer with Triton kernels, for an EagleNet of two graph layers on a CUDA device."""

    tile_texts = 256

    def __init__(self, plan: Plan, precision: Precision) -> None:
        from eaglenet.scoring.eaglenet.launching import KernelLauncher

        self.precision = precision
        self.plan = plan
        self.launcher = KernelLauncher(plan, precise=precision == "fp32")
        bytes_per_video = self.tile_texts * self.launcher.bytes_per_pair()
        tile_bytes = KERNEL_TILE_BYTES
        if plan.noise.is_cuda:
            tile_bytes = max(
                tile_bytes, torch.cuda.get_device_properties(plan.noise.device).total_memory // 20
            )
        self.tile_videos = min(max(tile_bytes // bytes_per_video, 1), 512)

    def calibrate(self, text: TextFeatures, video: VideoFeatures) -> None:
        from eaglenet.scoring.eaglenet.launching import SAMPLE_SIZE

        with fixed_precision(video.frames.device, "fp32"):
            sample = self._prepare(video[_every(len(video), SAMPLE_SIZE)])
            self.launcher.calibrate(text.sentence[_every(len(text), SAMPLE_SIZE)].float(), sample)

    def _prepare(self, video: VideoFeatures) -> PreparedVideos:
        full_precision = video.to(video.frames.device, torch.float32)
        return self.launcher.prepare(factorised.prepare(self.plan, full_precision))

    def _score(self, text: TextFeatures, prepared_videos: PreparedVideos) -> Tensor:
        return self.launcher.score_tile(text.sentence, prepared_videos)


def _every(count: int, size: int) -> slice:
    """Return a slice of fewer than ``2 * size`` evenly spaced rows."""
    return slice(None, None, max(1, count // size))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a plan with its floating-point tensors in another type."""
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(_cast(item, dtype) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        values = {spec.name: _cast(getattr(value, spec.name), dtype) for spec in fields(value)}
        # A projection shared by all edges must stay one object, so that it is multiplied once.
        if values.get("text_frame") is not None and value.text_frame is value.text_text:  # type: ignore[attr-defined]
            values["text_frame"] = values["text_text"]
        return replace(value, **values)
    return value


@dataclass(frozen=True)
class EagleNetForm:
    """Implementation of :class:`eaglenet.scoring.scorer.FastForm` for EagleNet."""

    plan: Plan

    def factorised_scorer(self, precision: Precision) -> Scorer:
        return FactorisedScorer(self.plan, precision)

    def kernel_scorer(self, precision: Precision) -> Scorer:
        return KernelScorer(self.plan, precision)

    def why_no_kernel(self, video: VideoFeatures) -> str | None:
        if importlib.util.find_spec("triton") is None:
            return "Triton is not installed (pip install 'eaglenet[triton]')"
        from eaglenet.scoring.eaglenet.kernel import is_interpreted
        from eaglenet.scoring.eaglenet.launching import why_not

        if video.frames.device.type != "cuda" and not is_interpreted():
            return f"features are on {video.frames.device.type}, but the kernels need a CUDA device"
        return why_not(self.plan, video.frames.shape[1])


def arrange(method: EagleNet, device: torch.device) -> EagleNetForm | None:
    """Return the fast form; None for an EagleNet without a graph."""
    plan = plan_of(method, device)
    return None if plan is None else EagleNetForm(plan)


FAST_FORMS.add(EagleNet.name, arrange)
