"""Methods of text-video retrieval: one file per paper, which registers its class."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eaglenet.methods.base import METHODS, Method, MethodSpec

__all__ = ["METHODS", "Method", "MethodSpec"]


def __getattr__(name: str) -> Any:
    """Import the interface, and torch with it, on first use; configs do not need torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from eaglenet.methods import base

    return getattr(base, name)


HELPERS = ("base", "configs", "early", "expert_base", "official", "tower_base")
"""Modules that register no method."""


def method_names() -> list[str]:
    """Return the names of all methods of the package, without importing them."""
    return [name for name in method_modules() if name not in HELPERS]


def method_modules() -> dict[str, str]:
    """Return the module of each method, in this folder or in ``early``, without importing it."""
    folder = Path(__file__).parent
    names = {f"{__name__}.{module.name}" for module in iter_modules([str(folder)])}
    names |= {f"{__name__}.early.{module.name}" for module in iter_modules([str(folder / "early")])}
    modules = {name.rpartition(".")[2]: name for name in names}
    return dict(sorted(modules.items()))
