"""Inspection: hash, probe and split files before their clips are decoded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import Splitting
from eaglenet.indexing.decoding import Window, split_windows
from eaglenet.indexing.fetching import current_version, local_path, share
from eaglenet.indexing.files import CHANGED, CandidateFile, FileVersion, content_hash
from eaglenet.transcripts.lines import TranscriptLine
from eaglenet.transcripts.subtitles import read_embedded_subtitles
from eaglenet.video.decoding import is_video, probe
from eaglenet.video.input_file import SharedFile
from eaglenet.video.limits import Limits
from eaglenet.video.pool import Access, Budget, Failure, Success, map_ahead
from eaglenet.video.recording import Recording, read_recording
from eaglenet.video.worker_channel import valid_reason
from eaglenet.video.worker_host import Host

LOOK_AHEAD = 6
Result = TypeVar("Result")
MAX_DURATION = 1e8
"""Maximum seconds of a video: three years. Some work grows with the duration that a file states."""
MAX_TIME = 2.0**53
"""Maximum time of a frame in seconds, beyond which floats skip whole seconds. Even recorders that
count from 1970 stay far below."""
MAX_CLIPS = 2**20
"""Maximum clips of a file: 120 days of 10 s each."""
TOO_LONG = "it is longer than three years, or has more than a million clips"
HASH_BYTES_PER_SECOND = 2 * 2**20
"""Minimum disk speed in bytes per second that the time budget assumes."""


@dataclass(frozen=True)
class Inspection:
    """Content hash, size and clips of a file; ``problem`` says why it cannot be used."""

    file: CandidateFile
    content: str = ""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    windows: tuple[Window, ...] = ()
    problem: str = ""
    is_cut_short: bool = False
    is_temporary: bool = False
    """True if the problem may be temporary (permissions, a bad disk); the next run tries again."""
    is_video: bool = True
    version: FileVersion | None = None
    subtitles: EmbeddedSubtitles | None = None
    """Subtitles inside the file; None if they were not read."""
    recording: Recording | None = None
    """Time, place and camera of the recording; None if they were not read."""


@dataclass(frozen=True)
class EmbeddedSubtitles:
    """Lines of the subtitles inside a file; ``problem`` says why they could not be read."""

    lines: tuple[TranscriptLine, ...] = ()
    problem: str = ""


def embedded_subtitles(path: str) -> EmbeddedSubtitles:
    """Read the subtitles inside a file; a video with unreadable ones is still stored."""
    try:
        return EmbeddedSubtitles(tuple(read_embedded_subtitles(path)))
    except VideoDecodeError:
        return EmbeddedSubtitles()  # An image, not a container.
    except (OSError, ValueError) as error:
        return EmbeddedSubtitles(problem=f"embedded subtitles: {error}")


def recording_of(path: str) -> Recording:
    """Read when and where a file was recorded; a file with unreadable tags is still stored."""
    try:
        return read_recording(path)
    except VideoDecodeError:
        return Recording()


def read_stored_files(
    work: Callable[[str], Result],
    paths: Sequence[str],
    workers: int,
    limits: Limits,
    share: Callable[[str], SharedFile],
    duration_of: Callable[[str], float] = lambda path: 0.0,
) -> Iterator[Success[str, Result] | Failure[str]]:
    """Run ``work`` on the paths of files that were indexed before, in one process with ``limits``.

    ``share`` opens a file. ``duration_of`` returns the duration of a file in seconds, on which its
    time budget depends.
    """
    budget: Budget[str] = Budget(
        limits.memory, str, lambda path: limits.time_for(duration_of(path), path)
    )
    access: Access[str, Result] = Access(share=share)
    num_workers = min(workers, 1 if paths else 0)
    return map_ahead(work, paths, workers=num_workers, budget=budget, access=access)


def inspect(
    file: CandidateFile, splitting: Splitting, known_contents: frozenset[str]
) -> Inspection:
    """Hash, probe and split one file; a content in ``known_contents`` is only hashed."""
    if file.problem:
        return Inspection(file, problem=file.problem)
    content = ""
    try:
        version = current_version(file.path)
        local = local_path(file.path)
        if not file.is_sure and not is_video(local):
            return Inspection(file, content_hash(local), is_video=False)
        content = content_hash(local)
        if current_version(file.path) != version or version[1:3] != (file.size, file.modified_ns):
            return Inspection(file, problem=CHANGED, is_temporary=True)
        if content in known_contents:
            return Inspection(file, content, recording=recording_of(local))
        info = probe(local)
        if not (0 < info.duration < float("inf") or info.is_image):
            return Inspection(file, content, problem=f"its duration is {info.duration} s")
        windows = split_windows(Path(local), info.spans, splitting)
        if len(windows) > MAX_CLIPS or info.duration > MAX_DURATION:
            return Inspection(file, content, problem=TOO_LONG)
        return Inspection(
            file,
            content,
            info.duration,
            info.width,
            info.height,
            windows=tuple(windows),
            is_cut_short=info.is_cut_short,
            version=version,
            subtitles=embedded_subtitles(local),
            recording=recording_of(local),
        )
    except VideoDecodeError as error:
        return Inspection(file, content, problem=error.cause)
    except OSError as error:
        return Inspection(file, content, problem=error.strerror or str(error), is_temporary=True)


def inspect_ahead(
    files: Iterable[CandidateFile],
    splitting: Splitting,
    known_contents: frozenset[str],
    workers: int = 0,
    limits: Limits | None = None,
    host: Host | None = None,
) -> Iterator[Inspection]:
    """Inspect files in order, in one process with ``limits``, or here if ``workers`` is 0.

    One process is enough: hashing and probing wait for the disk. ``host``: see :class:`Access`.
    """
    work = partial(inspect, splitting=splitting, known_contents=known_contents)
    budget = inspection_budget(limits or Limits())
    outcomes = map_ahead(
        work,
        files,
        workers=min(workers, 1),
        prefetch=LOOK_AHEAD,
        budget=budget,
        access=replace(inspection_access(splitting, known_contents), host=host),
    )
    yield from map(inspection_of, outcomes)


def inspection_budget(limits: Limits) -> Budget[CandidateFile]:
    """Return the memory and time for one file."""
    return Budget(
        limits.memory,
        lambda file: file.path,
        lambda file: limits.time_for(file.size / HASH_BYTES_PER_SECOND, file.path),
    )


def inspection_access(
    splitting: Splitting, known_contents: frozenset[str]
) -> Access[CandidateFile, Inspection]:
    """Return the file that an inspector may read, and the check of its result."""
    # Finding shots decodes the whole video, in threads.
    return Access(
        share=lambda file: share(file.path, file.folders),
        check=partial(check_inspection, known_contents=known_contents),
        threads=splitting.shots,
    )


def check_inspection(
    file: CandidateFile, inspection: Inspection, known_contents: frozenset[str] = frozenset()
) -> None:
    """Raise ``ValueError`` for an inspection of another file, or with impossible values.

    A content in ``known_contents`` is only hashed.
    """
    if inspection.file != file:
        raise ValueError("an inspection of another file")
    has_failed = bool(inspection.problem) or not inspection.is_video
    is_hash = re.fullmatch("[0-9a-f]{32}", inspection.content)
    if not (is_hash or (has_failed and not inspection.content)):
        raise ValueError("not a content hash")
    if file.is_sure and not inspection.is_video:
        raise ValueError("a video by its name, which the report would leave out")
    # The transcript of a known content is that of another file.
    if inspection.content in known_contents and (inspection.windows or inspection.subtitles):
        raise ValueError("clips or subtitles of a content that is stored")
    if not (has_failed or inspection.content in known_contents or inspection.windows):
        raise ValueError("no clips")
    if len(inspection.windows) > MAX_CLIPS or inspection.duration > MAX_DURATION:
        raise ValueError("too many clips, or too long")
    numbers = [inspection.duration, *(time for window in inspection.windows for time in window)]
    if not all(0 <= number < math.inf for number in numbers):
        raise ValueError("times that are negative or not finite")
    if any(not start <= end < MAX_TIME for start, end in inspection.windows):
        raise ValueError("a window that ends before it starts, or too late")
    if not all(0 <= side < 2**31 for side in (inspection.width, inspection.height)):
        raise ValueError("an impossible size")


def inspection_of(
    outcome: Success[CandidateFile, Inspection] | Failure[CandidateFile],
) -> Inspection:
    """Return the result of a worker; a failed inspection becomes a problem of the file."""
    if isinstance(outcome, Failure):
        return Inspection(outcome.request, problem=outcome.reason)
    return replace(outcome.result, problem=valid_reason(outcome.result.problem))
