"""Settings of CLIP4Clip. Does not import torch: compact models are read without it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from eaglenet.core.errors import ConfigError

Head = Literal["mean", "lstm", "transformer", "tight"]
Stem = Literal["2d", "3d"]


@dataclass(frozen=True)
class CLIP4ClipConfig:
    """Settings of CLIP4Clip.

    head: ``mean`` (meanP, no parameters), ``lstm`` (seqLSTM), ``transformer`` (seqTransf) or
        ``tight`` (tightTransf, a cross encoder over every pair).
    num_positions: frames that a transformer head can take (``tight`` needs one more for the text).
    pairs_at_once: pairs that the cross encoder takes in one batch; bounds memory, not results.
    score_bias: keep a constant in the scores of ``tight``, for converted official checkpoints.
    stem: ``2d``, CLIP's own map of a patch, or ``3d``: patches are seen with the frames before and
        after, inside CLIP's vision tower (its authors found it no better, and freeze nothing then:
        ``training.freeze=none``).
    """

    num_frames: int = 12
    head: Head = "mean"
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    dropout: float = 0.1
    pairs_at_once: int = 4096
    score_bias: bool = False
    stem: Stem = "2d"

    def __post_init__(self) -> None:
        for name, choices in (("head", get_args(Head)), ("stem", get_args(Stem))):
            if getattr(self, name) not in choices:
                names = ", ".join(choices)
                raise ConfigError(
                    f"{name} {getattr(self, name)!r} is unknown; choose one of {names}"
                )
