"""Downloads told as they go: a bar on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

SECONDS_BETWEEN_LINES = 10.0


def download_progress() -> type[Any]:
    """The class that the hub's library shows a download with: name, size, speed."""
    import tqdm

    class Told(tqdm.tqdm):  # type: ignore[misc]
        """A bar on a terminal; lines with name, megabytes and speed where there is none."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            options.pop("name", None)  # the library's own subclass knows it, tqdm does not
            self._told = -SECONDS_BETWEEN_LINES
            self._begun = time.monotonic()
            options["disable"] = False
            # The library shows a long address where it has no short name, and of a line of 80
            # columns nothing is left for the speed.
            options["desc"] = str(options.get("desc") or "").rstrip(": ").rsplit("/", 1)[-1]
            super().__init__(*arguments, **options)

        def display(self, *arguments: Any, **options: Any) -> Any:
            if sys.stderr.isatty():
                return super().display(*arguments, **options)
            now = time.monotonic()
            is_done = self.total is not None and self.n >= self.total
            if is_done or now - self._told >= SECONDS_BETWEEN_LINES:
                self._told = now
                speed = self.n / max(now - self._begun, 1e-3) / 1e6
                size = "?" if self.total is None else f"{self.total / 1e6:.1f}"
                done = f"{self.n / 1e6:.1f} of {size} MB, {speed:.1f} MB/s"
                sys.stderr.write(f"downloading {self.desc.rstrip(': ')}: {done}\n")
            return True

    return Told
