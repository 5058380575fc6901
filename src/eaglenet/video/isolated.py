"""Calls in a process of its own: what a broken file does there ends nothing here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from eaglenet.errors import EagleNetError, UsageError
from eaglenet.video.transport import receive
from eaglenet.video.worker import Reply, Worker, end_worker, start_worker


def _call(request: tuple[Callable[..., Any], tuple[Any, ...]]) -> Any:
    function, arguments = request
    return function(*arguments)


class Isolated:
    """Calls functions in one process of its own with limits; replaced when it dies or is slow.

    Safe to use from several threads, which wait for each other.
    """

    def __init__(self, memory: int, seconds: float) -> None:
        self.memory = memory
        self.seconds = seconds
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What ``function`` gives; an error of its own, or of the limits, is an EagleNetError."""
        with self._lock:
            # It dies with the thread that started it, and threads of a service come and go.
            if self._worker is not None and not self._worker.process.is_alive():
                self._stop()
            if self._worker is None:
                self._worker = start_worker(_call, self.memory)
                self._worker.connection.recv()
            connection = self._worker.connection
            try:
                connection.send((function, arguments))
                if not connection.poll(self.seconds):
                    raise EagleNetError(f"it took longer than {self.seconds:.0f} s")
                answer: Reply = receive(connection)
            except (EagleNetError, EOFError, OSError) as error:
                self._stop()
                reason = str(error) if isinstance(error, EagleNetError) else "the decoder crashed"
                raise UsageError(f"{reason}; give a smaller or another file") from None
            if answer.reason is not None:
                raise UsageError(answer.reason)
            return answer.result

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._worker is not None:
            self._worker.process.kill()
            end_worker(self._worker)
            self._worker = None
