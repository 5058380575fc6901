"""Look at files before they are decoded, a few ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from eaglenet.errors import VideoDecodeError
from eaglenet.search.indexing.clips import Window, windows_of
from eaglenet.search.indexing.files import FoundFile, content_hash
from eaglenet.search.store.manifest import Splitting

LOOK_AHEAD = 6


@dataclass(frozen=True)
class Inspected:
    """A file's content hash, size and clips; ``problem`` where it cannot be used."""

    file: FoundFile
    content: str = ""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    windows: tuple[Window, ...] = ()
    problem: str = ""
    is_cut_short: bool = False


def inspect(file: FoundFile, splitting: Splitting, known: frozenset[str]) -> Inspected:
    """Hash, probe and split one file; content in ``known`` is only hashed."""
    from eaglenet.video.decoding import probe

    if file.problem:
        return Inspected(file, problem=file.problem)
    content = ""
    try:
        content = content_hash(file.path)
        if content in known:
            return Inspected(file, content)
        info = probe(file.path)
        if not 0 < info.duration < float("inf"):
            return Inspected(file, content, problem=f"its duration is {info.duration} s")
        windows = windows_of(Path(file.path), info.duration, splitting)
        return Inspected(
            file,
            content,
            info.duration,
            info.width,
            info.height,
            windows=tuple(windows),
            is_cut_short=info.is_cut_short,
        )
    except VideoDecodeError as error:
        return Inspected(file, content, problem=error.cause)
    except OSError as error:
        return Inspected(file, content, problem=error.strerror or str(error))


def inspect_ahead(
    files: Iterable[FoundFile], splitting: Splitting, known: frozenset[str]
) -> Iterator[Inspected]:
    """:func:`inspect` in threads (hashing and probing wait for the disk), in order."""
    waiting: deque[Future[Inspected]] = deque()
    with ThreadPoolExecutor(2, thread_name_prefix="inspect") as pool:
        try:
            for file in files:
                waiting.append(pool.submit(inspect, file, splitting, known))
                if len(waiting) >= LOOK_AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
