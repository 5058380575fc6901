"""Base config of all methods, and configs of the methods of compact models.

Does not import torch, because compact models are opened without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

from eaglenet.core.errors import ConfigError
from eaglenet.core.settings import check_choices


@dataclass(frozen=True)
class MethodConfig:
    """Base of the configs of methods: plain values, saved beside the weights.

    num_frames: frames per video.
    """

    num_frames: int = 12

    def __post_init__(self) -> None:
        check_choices(self)
        for spec in fields(self):
            _check_number(spec.name, getattr(self, spec.name), spec.default)
        self.require_positive("num_frames")

    def require_positive(self, *names: str) -> None:
        """Raise ``ConfigError`` for a number below 1."""
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")


DIVISORS = ("temperature", "sigma")
"""Names of settings by which methods divide."""


def _check_number(name: str, value: object, default: object) -> None:
    """Raise ``ConfigError`` for a number that no layer accepts.

    A number may be negative if its default is, or if it is a factor (a float).
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    is_count = not isinstance(default, float) and not (isinstance(default, int) and default < 0)
    if not math.isfinite(value):
        raise ConfigError(f"{name} is {value}; expected a number")
    if name.endswith("dropout") and not 0 <= value < 1:
        raise ConfigError(f"{name} is {value}; it must be 0 or more, and less than 1")
    if name in DIVISORS and value <= 0:
        raise ConfigError(f"{name} is {value}; it must be more than 0")
    if is_count and value < 0 and not name.endswith("seed"):
        raise ConfigError(f"{name} is {value}; it must be 0 or more")


@dataclass(frozen=True)
class CLIP4ClipConfig(MethodConfig):
    """Settings of CLIP4Clip.

    head: ``mean`` (meanP, no parameters), ``lstm`` (seqLSTM), ``transformer`` (seqTransf) or
        ``tight`` (tightTransf, a cross-encoder over every pair).
    num_positions: maximum frames of a transformer head (``tight`` needs one more for the text).
    pairs_at_once: pairs per batch of the cross-encoder; limits memory, does not change scores.
    score_bias: add a constant to the scores of ``tight``, for converted official checkpoints.
    stem: ``2d``, the patch embedding of CLIP, or ``3d``, which also covers the frames before and
        after. The authors found ``3d`` no better, and freeze nothing with it
        (``training.freeze=none``).
    """

    head: Literal["mean", "lstm", "transformer", "tight"] = "mean"
    num_layers: int = 4
    num_heads: int | None = None
    num_positions: int = 77
    dropout: float = 0.1
    pairs_at_once: int = 4096
    score_bias: bool = False
    stem: Literal["2d", "3d"] = "2d"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("pairs_at_once")


@dataclass(frozen=True)
class WordFrameConfig(MethodConfig):
    """Settings of WordFrame; the switches are its ablations.

    coarse: add the cosine of text and mean frame to the score; the interaction then starts at 0.
        Off: the interaction only, for untrained towers.
    changes: add a linear map of the difference of its neighbours to each frame.
    num_layers: blocks of self-attention over frames before words are matched; 0: none.
    weighted: weight the words by a small network; off: all words have the same weight.
    both_ways: match frames with words too, as in DRL. Off: a frame that matches no word does not
        lower the score.
    interaction: match words with frames; off: the cosine and the hubness bank only.
    bank, bank_weight: size of the hubness bank of training texts (0: none), and its weight.
    token_shift: the last two visual blocks of a CLIP tower exchange tokens with adjacent frames.
    """

    coarse: bool = True
    changes: bool = True
    num_layers: int = 1
    num_heads: int | None = None
    num_positions: int = 77
    weighted: bool = True
    both_ways: bool = False
    interaction: bool = True
    bank: int = 1024
    bank_weight: float = 0.75
    token_shift: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers < 0:
            raise ConfigError(f"num_layers is {self.num_layers}; it must be 0 or more")
        if self.bank < 0 or self.bank_weight < 0:
            raise ConfigError(
                f"bank is {self.bank} and bank_weight is {self.bank_weight}; both must be 0 or more"
            )
        if not self.interaction and not self.coarse:
            raise ConfigError("interaction and coarse are both off; switch on at least one of them")
