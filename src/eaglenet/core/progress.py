"""How far some long work is: what the work says of itself, and who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """``done`` of ``total`` of what ``title`` names, and what else there is to say of it."""

    title: str
    done: int
    total: int
    detail: str = ""
    is_notable: bool = False
    """Worth a line in a log as such: a beginning, an evaluation."""
    is_counted: bool = True
    """Otherwise ``done`` and ``total`` (bytes, say) are for a bar, and ``detail`` says it all."""


Progress = Callable[[Work], None]
"""Called now and then while work goes on. `eaglenet.cli.terminal` has two that show it."""


def tell(
    progress: Progress | None,
    title: str,
    done: int,
    total: int,
    detail: str = "",
    *,
    is_notable: bool = False,
) -> None:
    """Say how far some long work is, where anyone listens."""
    if progress is not None:
        progress(Work(title, done, total, detail, is_notable))
