"""Look at files before they are decoded, a few ahead of need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from eaglenet.core.errors import VideoDecodeError
from eaglenet.indexing.decoding import Window, windows_of
from eaglenet.indexing.fetching import local_path, version_now
from eaglenet.indexing.files import CHANGED, FileVersion, FoundFile, content_hash
from eaglenet.search.store.splitting import Splitting
from eaglenet.transcripts.lines import Line
from eaglenet.transcripts.subtitles import read_inner_subtitles
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Budget, Done, Failed, map_ahead

LOOK_AHEAD = 6
HASHED_A_SECOND = 2 * 2**20
"""Bytes; slower disks than any."""


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
    is_passing: bool = False
    """Whether the problem is of the moment (no permission, a disk that fails), not of the file."""
    is_video: bool = True
    version: FileVersion | None = None
    subtitles: InnerSubtitles | None = None
    """Those inside the file; None where they were not looked for."""


@dataclass(frozen=True)
class InnerSubtitles:
    """The lines of a file's own subtitles; ``problem`` where they could not be read."""

    lines: tuple[Line, ...] = ()
    problem: str = ""


def inner_subtitles(path: str) -> InnerSubtitles:
    """Subtitles that cannot be read do not keep a video out of the store."""
    try:
        return InnerSubtitles(tuple(read_inner_subtitles(path)))
    except VideoDecodeError:
        return InnerSubtitles()  # Shown all the same, so it is no container: nothing is inside.
    except (OSError, ValueError) as error:
        return InnerSubtitles(problem=f"its subtitles: {error}")


def inspect(file: FoundFile, splitting: Splitting, known: frozenset[str]) -> Inspected:
    """Hash, probe and split one file; content in ``known`` is only hashed."""
    from eaglenet.video.decoding import is_video, probe

    if file.problem:
        return Inspected(file, problem=file.problem)
    content = ""
    try:
        version = version_now(file.path)
        local = local_path(file.path)
        if not file.is_sure and not is_video(local):
            return Inspected(file, is_video=False)
        content = content_hash(local)
        if version_now(file.path) != version or version[1:3] != (file.size, file.modified_ns):
            return Inspected(file, problem=CHANGED, is_passing=True)
        if content in known:
            return Inspected(file, content)
        info = probe(local)
        if not (0 < info.duration < float("inf") or info.is_still):
            return Inspected(file, content, problem=f"its duration is {info.duration} s")
        windows = windows_of(Path(local), info.stretches, splitting)
        return Inspected(
            file,
            content,
            info.duration,
            info.width,
            info.height,
            windows=tuple(windows),
            is_cut_short=info.is_cut_short,
            version=version,
            subtitles=inner_subtitles(local),
        )
    except VideoDecodeError as error:
        return Inspected(file, content, problem=error.cause)
    except OSError as error:
        return Inspected(file, content, problem=error.strerror or str(error), is_passing=True)


def inspect_ahead(
    files: Iterable[FoundFile],
    splitting: Splitting,
    known: frozenset[str],
    workers: int = 0,
    limits: Limits | None = None,
) -> Iterator[Inspected]:
    """:func:`inspect` in order; in a process with ``limits``, unless there are no ``workers``.

    One process is enough: hashing and probing wait for the disk.
    """
    work = partial(inspect, splitting=splitting, known=known)
    budget = inspection_budget(limits or Limits())
    outcomes = map_ahead(work, files, workers=min(workers, 1), prefetch=LOOK_AHEAD, budget=budget)
    yield from map(inspected, outcomes)


def inspection_budget(limits: Limits) -> Budget[FoundFile]:
    """What looking at a file may cost."""
    return Budget(
        limits.memory,
        lambda file: file.path,
        lambda file: limits.time_for(file.size / HASHED_A_SECOND),
    )


def inspected(outcome: Done[FoundFile, Inspected] | Failed[FoundFile]) -> Inspected:
    """What looking at a file gave; a problem where it gave nothing."""
    if isinstance(outcome, Failed):
        return Inspected(outcome.request, problem=outcome.reason)
    return outcome.result
