"""How to evaluate, as one value: what commands, runs and processes pass on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from eaglenet.methods.base import Method
from eaglenet.scoring import check_choice

MAX_SCORES = 1 << 26
"""Scores held at once: 256 MB in fp32."""


@dataclass(frozen=True)
class EvaluationOptions:
    """How to encode and score.

    backend: of scoring; ``auto`` chooses.
    precision: of the encoders (autocast) and of scoring: ``fp32``, ``bf16``; ``fp16`` of the
        encoders alone, as the authors evaluate; ``auto`` is the model's own (`EvaluationHabits`).
    noise_seeds: score again under each seed and report mean and spread, for methods with evaluation
        noise. The model keeps its own noise afterwards.
    scores_file: also write the scores there, a ``.npy`` ``[texts, videos]``.
    ranks_file: also write the rank of each query there, a ``.npz`` with ``t2v``, ``v2t`` and
        ``video_of_text`` (`evaluation.bootstrap`).
    hubness: rank again with a bias of each video from a fixed bank of typical sentences.
    bank: the sentences of that bank; none: 256 that come with the package.
    text_batch, video_batch: encoded at once. max_scores: scores held at once.
    """

    backend: str = "auto"
    precision: str = "auto"
    noise_seeds: tuple[int, ...] = ()
    scores_file: Path | None = None
    ranks_file: Path | None = None
    hubness: bool = False
    bank: tuple[str, ...] = ()
    text_batch: int = 256
    video_batch: int = 32
    max_scores: int = MAX_SCORES

    def __post_init__(self) -> None:
        check_choice(self.backend, "fp32" if self.precision == "auto" else self.scoring_precision)

    @property
    def scoring_precision(self) -> str:
        """fp16 is for encoders; scores would overflow."""
        return "fp32" if self.precision == "fp16" else self.precision

    def settled_for(self, method: Method) -> EvaluationOptions:
        """With the model's own precision where none was asked for."""
        if self.precision != "auto":
            return self
        return replace(self, precision=method.habits.precision)
