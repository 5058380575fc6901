"""Signals that ask a run to stop: it finishes its step and writes a checkpoint first."""

from __future__ import annotations

import signal
import threading
import time
from types import TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# `timeout` and `torchrun` send a signal to the process and again to its group.
SAME_SIGNAL_SECONDS = 1.0


class StopRequest:
    """Within its ``with`` block, remembers the first signal; a later second one acts as usual.

    Outside the main thread signals cannot be caught, and act as usual.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._asked = 0.0
        self._usual: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._usual = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def _ask(self, number: int, _frame: Any) -> None:
        if self.signal is None:
            self.signal, self._asked = signal.Signals(number), time.monotonic()
        elif time.monotonic() - self._asked > SAME_SIGNAL_SECONDS:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._usual.items():
            signal.signal(number, handler)
        self._usual = {}
