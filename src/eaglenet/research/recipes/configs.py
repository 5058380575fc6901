"""A method's configuration for an encoder of a given width and number of frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from eaglenet.methods import METHODS
from eaglenet.research.experiments.experiment import Experiment

HEADS: Mapping[str, str] = {
    "clip4clip-lstm": "lstm",
    "clip4clip-transformer": "transformer",
    "clip4clip-tight": "tight",
}
"""CLIP4Clip's seqLSTM, seqTransf and tightTransf under names of their own, for comparisons."""


VARIANTS: Mapping[str, tuple[str, ...]] = {
    **{name: ("clip4clip", f"head={head}") for name, head in HEADS.items()},
    "wordframe-interaction": ("wordframe", "coarse=false"),
    "wordframe-alike": ("wordframe", "weighted=false"),
    "wordframe-still": ("wordframe", "num_layers=0"),
    "wordframe-unchanging": ("wordframe", "changes=false"),
    "wordframe-both": ("wordframe", "both_ways=true"),
    "wordframe-bankless": ("wordframe", "bank=0"),
    "wordframe-levelled": ("wordframe", "coarse=true", "interaction=false"),
}
"""Name -> method and what is changed of it: CLIP4Clip's heads, and the ablation of WordFrame."""


def approximate_note(method: str) -> str:
    """What the description of a recipe adds where its method is read from an abstract."""
    return " Approximate: from the abstract." if METHODS[method].is_approximate else ""


def method_config(method: str, *, dim: int, num_frames: int, **changes: Any) -> Any:
    """Defaults of ``method`` with ``dim`` and ``num_frames`` set where it has them."""
    kind = METHODS[method].config_class
    names = {spec.name for spec in dataclasses.fields(kind)}
    sizes = {"dim": dim, "num_frames": num_frames}
    fitting = {name: value for name, value in sizes.items() if name in names}
    return kind(**{**fitting, **changes})


def with_head(clip4clip: Callable[[], Experiment], head: str) -> Experiment:
    """CLIP4Clip with one of its trained heads, which its authors train alike."""
    return clip4clip().override([f"method_config.head={head}"])


def variant(build: Callable[[str], Experiment], name: str) -> Experiment:
    """A row of :data:`VARIANTS` on what ``build`` makes of its method."""
    method, *changes = VARIANTS[name]
    return build(method).override([f"method_config.{change}" for change in changes])
