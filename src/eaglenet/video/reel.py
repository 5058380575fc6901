"""Join moments of files into one MP4 with audio, in a confined process.

    with open_segments([Segment("a.mp4", 3.0, 8.0), ...]) as segments:
        write_reel(segments, output)

The reel has the size of its first moment, at most 1920 x 1080; others get black borders. Images are
shown for five seconds.

Files may be hostile, so a separate process encodes them (``python -m eaglenet.video.reel``). It
inherits the open files, is confined on Linux (:mod:`eaglenet.video.confinement`), has limited
memory and CPU time, and ends with its parent. It reads a line of JSON from standard input, and
writes a line of JSON (``error`` or ``bytes``) and the MP4 to standard output; the parent trusts
neither.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

from eaglenet.core.errors import EagleNetError, UsageError, VideoDecodeError
from eaglenet.core.platform import (
    descriptor_to_handle,
    exit_with_parent,
    handle_to_descriptor,
    inheriting,
    limit_memory,
    limit_process,
    lower_priority,
)
from eaglenet.core.process import child_command, clean_environment
from eaglenet.core.untrusted import parse_json
from eaglenet.video import confinement
from eaglenet.video.audio import AudioFormat
from eaglenet.video.containers import is_image, load_pyav, pyav
from eaglenet.video.images import load_image_formats, open_image, scale_short_side
from eaglenet.video.input_file import SharedFile, share_file, use_shared_file
from eaglenet.video.sampling import clip_window
from eaglenet.video.source import open_video
from eaglenet.video.writing import ClipEncoder

MAX_SEGMENTS = 40
"""Maximum segments. Each is an open file of the process, which may have 64."""
MAX_SECONDS = 1200.0
IMAGE_SECONDS = 5
MAX_SIZE = (1920, 1080)
AUDIO = AudioFormat(48_000, "stereo")
MEMORY = 4 * 2**30
CPU_SECONDS = 2 * 3600
WRITE_SECONDS = 4 * 3600.0
"""Maximum seconds for writing a reel to a file."""
MAX_BYTES = 4 * 2**30
MAX_LINE = 4096
MAX_REASON = 300
CHUNK = 2**20
Result = TypeVar("Result")


@dataclass(frozen=True)
class Segment:
    """Seconds ``[start, end)`` of a file; ``descriptor`` is the open file."""

    path: str
    start: float
    end: float
    descriptor: int = -1


class SegmentError(VideoDecodeError):
    """A segment cannot be read; ``number`` is its position from 0."""

    def __init__(self, number: int, path: str | Path, cause: str) -> None:
        super().__init__(path, cause)
        self.number = number


@contextlib.contextmanager
def open_segments(
    segments: Sequence[Segment], share: Callable[[str], SharedFile] = share_file
) -> Iterator[list[Segment]]:
    """Yield segments with files that ``share`` opens; close the files after the block."""
    with contextlib.ExitStack() as stack:
        segments_with_files = []
        for number, segment in enumerate(segments[: MAX_SEGMENTS + 1]):
            file = share(segment.path)
            stack.callback(file.close)
            try:
                segments_with_files.append(replace(segment, descriptor=file.require_descriptor()))
            except OSError as error:
                reason = error.strerror or "cannot be read"
                raise SegmentError(number, segment.path, reason) from error
        yield segments_with_files


def check_segments(segments: Sequence[Segment]) -> None:
    """Refuse a reel that is empty or exceeds the limits."""
    if not segments:
        raise UsageError("no results to save; search for something that is in the store")
    if len(segments) > MAX_SEGMENTS:
        raise UsageError(
            f"{len(segments)} results; a reel has at most {MAX_SEGMENTS}: use -k {MAX_SEGMENTS}"
        )
    seconds = sum(segment.end - segment.start for segment in segments)
    if not seconds <= MAX_SECONDS:
        raise UsageError(
            f"{seconds:.0f} s in all; a reel has at most {MAX_SECONDS:.0f} s: use fewer results "
            "with -k or less --padding"
        )


def save_reel(
    segments: Sequence[Segment], path: Path, share: Callable[[str], SharedFile] = share_file
) -> list[SegmentError]:
    """Write a reel to a file, replacing an existing one; ``share`` opens its sources.

    Segments that cannot be read are left out and returned as errors. If none can be read, the first
    error is raised.
    """
    from eaglenet.core.files import atomic_write

    check_segments(segments)
    if path.suffix.lower() != ".mp4":
        raise UsageError(f"{path}: a reel is an MP4; use a name that ends in .mp4")
    remaining, errors = list(segments), list[SegmentError]()
    while remaining:
        try:
            with (
                open_segments(remaining, share) as sources,
                atomic_write(path) as partial,
                partial.open("wb") as file,
            ):
                write_reel(sources, file)
        except SegmentError as error:
            # Start again, since the output may contain part of the segment that failed.
            errors.append(error)
            del remaining[error.number]
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror}") from error
        else:
            return errors
    raise errors[0]


def write_reel(segments: Sequence[Segment], output: IO[bytes]) -> None:
    """Encode open segments and write the MP4 to ``output``."""
    process = start_reel(segments)
    # The CPU time limit does not end a process that waits.
    watchdog = threading.Timer(WRITE_SECONDS, process.kill)
    watchdog.daemon = True
    watchdog.start()
    try:
        copy_reel(process, output, [segment.path for segment in segments])
    finally:
        watchdog.cancel()
        end_reel(process)


def start_reel(segments: Sequence[Segment]) -> subprocess.Popen[bytes]:
    """Start the process that encodes open segments; end it with :func:`end_reel`."""
    check_segments(segments)
    handles = [descriptor_to_handle(segment.descriptor) for segment in segments]
    request = {
        "parent": os.getpid(),
        # Only the extension of the name, which tells images from videos.
        "segments": [
            [handle, Path(segment.path).suffix, segment.start, segment.end]
            for handle, segment in zip(handles, segments, strict=True)
        ],
    }
    process = subprocess.Popen(
        child_command("eaglenet.video.reel"),
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        **inheriting(handles),
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
    return process


def copy_reel(process: subprocess.Popen[bytes], output: IO[bytes], paths: Sequence[str]) -> None:
    """Check the untrusted output of the process, and copy the MP4 to ``output``.

    ``paths`` are the files of the segments, for errors.
    """
    assert process.stdout is not None
    crash = UsageError("the decoder crashed; leave the file out and try again")
    try:
        header = parse_json(process.stdout.readline(MAX_LINE))
        if "error" in header:
            number = range(len(paths))[int(header["segment"])]
            raise SegmentError(number, paths[number], str(header["error"])[:MAX_REASON])
        size = int(header["bytes"])
    except (ValueError, TypeError, LookupError, OverflowError):
        raise crash from None
    if not 0 < size <= MAX_BYTES:
        raise crash
    while size:
        chunk = process.stdout.read(min(CHUNK, size))
        if not chunk:
            raise crash
        output.write(chunk)
        size -= len(chunk)


def end_reel(process: subprocess.Popen[bytes]) -> None:
    """Kill the process, finished or not."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


# In the process


def encode_segments(segments: Sequence[Segment]) -> bytes:
    """Return an MP4 of open segments."""
    buffer = io.BytesIO()
    has_audio = any(_on_segment(_has_audio, *each) for each in enumerate(segments))
    with pyav().open(buffer, "w", format="mp4") as container:
        encoder = ClipEncoder(container, AUDIO if has_audio else None, max_size=MAX_SIZE)
        for number, segment in enumerate(segments):
            _on_segment(partial(_add, encoder), number, segment)
        encoder.finish()
    return buffer.getvalue()


def _on_segment(function: Callable[[Segment], Result], number: int, segment: Segment) -> Result:
    """Call ``function`` while readers use the open file of a segment; errors name the segment."""
    use_shared_file(SharedFile(segment.path, os.dup(segment.descriptor)))
    try:
        return function(segment)
    except (EagleNetError, MemoryError, OSError, ValueError, pyav().FFmpegError) as error:
        reason = error.cause if isinstance(error, VideoDecodeError) else str(error)
        raise SegmentError(number, segment.path, reason or type(error).__name__) from error


def _has_audio(segment: Segment) -> bool:
    if is_image(segment.path):
        return False
    with open_video(segment.path, threads=1) as source:
        return bool(source.container.streams.audio)


def _add(encoder: ClipEncoder, segment: Segment) -> None:
    if is_image(segment.path):
        image = open_image(segment.path)
        pixels = scale_short_side(image, encoder.fitted_side(image.width, image.height))
        # Players and editors expect more than one frame in five seconds.
        for second in range(IMAGE_SECONDS):
            encoder.add_frame(pixels, Fraction(second), Fraction(1))
        encoder.end_span(Fraction(IMAGE_SECONDS), None)
        return
    with open_video(segment.path, threads=1) as source:
        encoder.add_video(source, *clip_window(source, (segment.start, segment.end)))


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline())
    exit_with_parent(request["parent"])
    lower_priority()
    load_pyav()
    load_image_formats()
    output = os.fdopen(os.dup(1), "wb")
    segments = [
        Segment(f"segment-{number}{suffix}", start, end, handle_to_descriptor(handle))
        for number, (handle, suffix, start, end) in enumerate(request["segments"])
    ]
    limit_memory(MEMORY)
    limit_process(cpu_seconds=CPU_SECONDS)
    # x264 encodes in threads.
    confinement.confine()
    try:
        content = encode_segments(segments)
    except SegmentError as error:
        header = {"error": error.cause, "segment": error.number}
        output.write(json.dumps(header).encode() + b"\n")
    else:
        output.write(json.dumps({"bytes": len(content)}).encode() + b"\n")
        output.write(content)
    output.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
