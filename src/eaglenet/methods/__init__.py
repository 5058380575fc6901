"""Methods of text-video retrieval: one file per paper, which registers its class."""

from __future__ import annotations

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
