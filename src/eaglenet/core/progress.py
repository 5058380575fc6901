"""Progress of long-running work: the updates it reports, and the callback that receives them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressUpdate:
    """``done`` of ``total`` units of the work called ``title``, with a detail to show beside it."""

    title: str
    done: int
    total: int
    detail: str = ""
    is_notable: bool = False
    """True for an update that gets its own line in a log: a start, an evaluation."""
    is_counted: bool = True
    """Show the numbers; False for units such as bytes, where ``detail`` says it all."""


Progress = Callable[[ProgressUpdate], None]
"""Called now and then during work. `eaglenet.cli.terminal` has two that display it."""


def report_progress(
    progress: Progress | None,
    title: str,
    done: int,
    total: int,
    detail: str = "",
    *,
    is_notable: bool = False,
) -> None:
    """Call ``progress`` with an update, unless it is None."""
    if progress is not None:
        progress(ProgressUpdate(title, done, total, detail, is_notable))
