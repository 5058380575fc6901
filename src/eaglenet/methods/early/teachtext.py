"""TeachText: a student that also learns the mean similarities of teachers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.types import Encoder, Losses, RightPairs, TextFeatures, VideoFeatures
from eaglenet.encoders.base import TextSource, VideoSource
from eaglenet.layers.hubness import HubnessLayer
from eaglenet.methods.base import METHODS, Method, register
from eaglenet.methods.configs import MethodConfig


@dataclass(frozen=True)
class TeachTextConfig(MethodConfig):
    """Settings of TeachText.

    student: name of the method that learns. student_config: its settings.
    teacher_weight: weight of the distillation loss.
    """

    dim: int = 512
    student: str = "ce"
    student_config: Mapping[str, Any] = field(default_factory=dict)
    teacher_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.student == "teachtext":
            raise ConfigError("student must be another method than teachtext")


@register(
    TeachTextConfig,
    paper="TeachText (Croitoru et al., ICCV 2021)",
    checked_by="golden",
    reads_experts=True,
)
class TeachText(Method):
    r"""Losses of the student plus a distillation loss over all pairs of a batch.

    .. math:: \mathrm{mean}_{ij}\, \mathrm{Huber}_1(S_{ij} - T_{ij}), \qquad
        T_{ij} = \frac1K \sum_k \langle t^k_i, v^k_j \rangle

    Teachers are earlier models; `eaglenet data teach` writes their vectors into the features
    folder. Without teachers, only the losses of the student apply. Scores do not use teachers.

    Paper: students are CE and MMT, here any method. The weights of experts are part of the stored
    text vectors (uncertain: the released training sums plain products). The student of the
    published result is MMT with more teachers (uncertain); recipes use CE, as the released code.
    The variant that leaves out captions which teachers rank badly is not implemented.
    """

    name = "teachtext"
    config: TeachTextConfig

    def __init__(self, encoder: Encoder, config: TeachTextConfig) -> None:
        spec = METHODS[config.student]
        if hasattr(encoder, "experts") and not spec.reads_experts:
            raise ConfigError(
                f"student {config.student} does not read several experts; set "
                "encoder.kind=features, or choose ce, mmt or t2vlad"
            )
        sizes = {"num_frames": config.num_frames, "dim": config.dim}
        field_names = {entry.name for entry in dataclasses.fields(spec.config_class)}
        settings = {name: value for name, value in sizes.items() if name in field_names}
        try:
            student_config = spec.config_class(**{**settings, **config.student_config})
        except TypeError as error:
            raise ConfigError(f"student_config of {config.student}: {error}") from error
        try:
            student = spec.build(student_config, encoder)
        except ConfigError as error:
            raise ConfigError(f"teachtext cannot teach {config.student}: {error}") from error
        super().__init__(encoder, config)
        self.frame_spec = student.frame_spec
        self.needs_ids = student.needs_ids
        self.reads_words = student.needs_words or student.reads_words
        self.is_cross_encoder = student.is_cross_encoder
        # Register the encoder only once, so that its weights are saved once.
        del student._modules["encoder"]
        student.__dict__["encoder"] = encoder
        self.student = student

    def _encode_text(self, texts: TextSource) -> TextFeatures:
        text = self.student.encode_text(texts)
        return dataclasses.replace(text, teachers=_teachers_of(self, texts, text.sentence))

    def _encode_video(self, videos: VideoSource) -> VideoFeatures:
        video = self.student.encode_video(videos)
        return dataclasses.replace(video, teachers=_teachers_of(self, videos, video.frames))

    def score(self, text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
        return self.student.score(text, video)

    def losses(self, text: TextFeatures, video: VideoFeatures, positives: RightPairs) -> Losses:
        losses = self.student.losses(text, video, positives)
        if text.teachers is None or video.teachers is None:
            return losses
        teacher_loss = F.smooth_l1_loss(self.score(text, video), teacher_scores(text, video))
        return Losses(
            {**losses.terms, "teachers": teacher_loss},
            {**losses.weights, "teachers": self.config.teacher_weight},
        )

    def coarse_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n dim"]:
        return self.student.coarse_vectors(features)

    def joint_vectors(self, features: TextFeatures | VideoFeatures) -> Float[Tensor, "n joint_dim"]:
        return teaching_vectors(self.student, features)

    def frame_scores(
        self, text: TextFeatures, video: VideoFeatures
    ) -> Float[Tensor, "texts videos frames"]:
        return self.student.frame_scores(text, video)

    @property
    def hubness_layer(self) -> tuple[HubnessLayer, Tensor] | None:
        return self.student.hubness_layer

    @property
    def score_tile(self) -> tuple[int, int]:
        return self.student.score_tile


def _teachers_of(method: Method, inputs: object, like: Tensor) -> Tensor | None:
    """Return the teacher vectors of an input, in training only."""
    teachers = getattr(inputs, "teachers", None) if method.training else None
    return None if teachers is None else teachers.to(like)


def teacher_scores(text: TextFeatures, video: VideoFeatures) -> Float[Tensor, "texts videos"]:
    """Return T, the mean over teachers of the products of their vectors."""
    if text.teachers is None or video.teachers is None:
        raise UsageError(
            "the texts and videos have no teachers; write them with: eaglenet data teach"
        )
    products = torch.einsum("tkd,vkd->tvk", text.teachers, video.teachers)
    return products.mean(dim=-1)


def teaching_vectors(
    method: Method, features: TextFeatures | VideoFeatures
) -> Float[Tensor, "n joint_dim"]:
    """Return the vectors of a teacher, whose products equal or approximate its scores."""
    joint = getattr(method, "joint_vectors", method.coarse_vectors)
    vectors: Tensor = joint(features)
    return vectors
