"""A method's configuration for an encoder of a given width and number of frames."""

from __future__ import annotations

import dataclasses
from typing import Any

from eaglenet.methods import METHODS


def method_config(method: str, *, dim: int, num_frames: int, **changes: Any) -> Any:
    """Defaults of ``method`` with ``dim`` and ``num_frames`` set where it has them."""
    kind = METHODS[method].config_class
    names = {spec.name for spec in dataclasses.fields(kind)}
    sizes = {"dim": dim, "num_frames": num_frames}
    fitting = {name: value for name, value in sizes.items() if name in names}
    return kind(**{**fitting, **changes})
