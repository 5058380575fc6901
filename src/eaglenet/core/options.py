"""Options of the command line, declared in the dataclasses that they fill. Quick to import."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def option(default: Any, help: str, **metadata: Any) -> Any:
    """Declare a field of a dataclass that is also an option.

    ``metadata`` has the keys that :mod:`eaglenet.cli.dataclass_options` describes::

        overlap: float = option(2.0, "Set the overlap of clips.", group="Clips", metavar="SECONDS")
    """
    return field(default=default, metadata={"help": help, **metadata})
