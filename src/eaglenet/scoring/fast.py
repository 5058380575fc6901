"""The table of fast scorers: methods whose score can be arranged so that little is left of a pair.

A method gets one with a function and ``FAST_FORMS.add(name of the method, function)``; a module of
this package that does so is named in the table.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from eaglenet.core.registry import Registry
from eaglenet.core.types import VideoFeatures
from eaglenet.scoring.scorer import Precision, Scorer


class FastForm(Protocol):
    """A model's weights, arranged once for scoring; as exact as its own ``score``."""

    def factorised(self, precision: Precision) -> Scorer:
        """In plain PyTorch, on any device."""
        ...

    def kernel(self, precision: Precision) -> Scorer:
        """With kernels of its own, where :meth:`why_no_kernel` finds no reason against it."""
        ...

    def why_no_kernel(self, video: VideoFeatures) -> str | None:
        """The reason why there is no kernel for these videos, or None."""
        ...


class Arrange(Protocol):
    """The entry of :data:`FAST_FORMS`."""

    def __call__(self, method: Any, device: torch.device) -> FastForm | None:
        """None where this model of the method has no such form."""
        ...


FAST_FORMS: Registry[Arrange] = Registry(
    "fast scorer",
    modules={
        "eaglenet": "eaglenet.scoring.eaglenet.scorers",
        "wordframe": "eaglenet.scoring.wordframe",
    },
)
