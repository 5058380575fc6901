"""Clips: splitting videos into windows, and decoding their frames and thumbnails in workers."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.indexing.fetching import current_version, local_path, share
from eaglenet.indexing.files import CHANGED, FileVersion
from eaglenet.video import gpu
from eaglenet.video.decoding import (
    DecodedVideo,
    decode_keyframe_windows,
    decode_windows,
    shot_boundaries,
)
from eaglenet.video.images import pixels_to_jpeg
from eaglenet.video.limits import Limits
from eaglenet.video.pixels import Pixels
from eaglenet.video.pool import Access, Budget, Failure, Success, map_ahead
from eaglenet.video.reader import OPEN_FILES
from eaglenet.video.sampling import shared_step
from eaglenet.video.windows import FrameArrays
from eaglenet.video.worker_channel import valid_reason
from eaglenet.video.worker_host import Host

Window = tuple[float, float]
ClipKey = tuple[str, int]

MIN_SHOT = 1.0
"""Minimum seconds of a shot; shorter shots are joined to the previous one."""


def check_splitting(splitting: Splitting) -> Splitting:
    """Raise an error for lengths that give no clips."""
    if not 0 < splitting.clip_seconds < math.inf:
        raise UsageError(f"clip_seconds must be finite and above 0, not {splitting.clip_seconds}")
    if not 0 <= splitting.overlap < splitting.clip_seconds:
        raise UsageError(
            f"overlap must be at least 0 and less than the clip's {splitting.clip_seconds} s, "
            f"not {splitting.overlap}"
        )
    return splitting


def with_shared_frames(splitting: Splitting, spec: FrameSpec) -> Splitting:
    """Let overlapping clips of a new store share frames, so that each is encoded once."""
    step = 0.0
    if spec.sampling == "uniform" and not spec.fast:
        step = shared_step(splitting.clip_seconds, splitting.overlap, spec.num_frames)
    return dataclasses.replace(splitting, frame_step=step)


def fixed_windows(
    duration: float, clip_seconds: float, overlap: float, start: float = 0.0
) -> list[Window]:
    """Split ``[start, start + duration]`` into windows of equal length; the last may be shorter.

    A remainder that only the overlap would cover gets no window of its own.

    >>> fixed_windows(20.0, 10.0, 2.0)
    [(0.0, 10.0), (8.0, 18.0), (16.0, 20.0)]
    """
    if duration <= clip_seconds:
        return [(start, start + duration)]
    step = clip_seconds - overlap
    windows: list[Window] = []
    position = 0.0
    while not windows or windows[-1][1] < start + duration - 1e-6:
        windows.append((start + position, start + min(position + clip_seconds, duration)))
        # A product rather than a running sum, so that times in long videos stay exact.
        position = len(windows) * step
    return windows


def shot_windows(
    cuts: Sequence[float], duration: float, clip_seconds: float, overlap: float
) -> list[Window]:
    """Return windows between cuts (in seconds); split long shots, and join very short ones."""
    edges = [0.0]
    for cut in sorted(cuts):
        if cut - edges[-1] >= MIN_SHOT and duration - cut >= MIN_SHOT:
            edges.append(cut)
    edges.append(duration)
    windows: list[Window] = []
    for start, end in pairwise(edges):
        windows += fixed_windows(end - start, clip_seconds, overlap, start)
    return windows


def split_windows(
    path: Path, spans: Sequence[tuple[float, float]], splitting: Splitting
) -> list[Window]:
    """Return the windows of the clips of a file, within the time spans that have frames."""
    length, overlap = splitting.clip_seconds, splitting.overlap
    if splitting.shots and len(spans) == 1:
        return shot_windows(shot_boundaries(path), spans[0][1], length, overlap)
    return [
        window
        for start, end in spans
        for window in fixed_windows(end - start, length, overlap, start)
    ]


THUMBNAIL_SIZE = 160
"""Shorter side in pixels; thumbnails show the whole frame, models see a square."""
MAX_THUMBNAIL_BYTES = 2**20
CLIPS_AT_ONCE = 16
"""Neighbouring clips that a worker decodes in one pass: 29 MB of pixels for 12 frames of 224 px.
Every pass decodes again from the keyframe before it."""
FIRST_CLIPS = 4
"""Clips of the first passes over a file, so that encoding and other workers start early."""
PREFETCH = 4


@dataclass(frozen=True)
class ClipRequest:
    """Neighbouring clips of one file to decode."""

    content: str
    path: str
    numbers: tuple[int, ...]
    windows: tuple[Window, ...]
    version: FileVersion | None = None
    """Version of the file that was hashed; a file replaced since then gives no clips."""
    duration: float = 0.0
    """Duration of the whole file in seconds, on which its time budget depends."""
    uses_keyframes: bool = False
    """True if a clip may be decoded from keyframes only."""


@dataclass(frozen=True)
class ClipFrames(FrameArrays):
    """A decoded clip."""

    key: ClipKey
    path: str
    window: Window
    pixels: Pixels
    """``[frames, 3, size, size]``"""
    is_real: NDArray[np.bool_]
    times: NDArray[np.float32]
    thumbnail: bytes
    is_from_keyframes: bool = False


@dataclass(frozen=True)
class ClipFailure:
    """A clip without decodable frames."""

    key: ClipKey
    reason: str
    is_temporary: bool = False
    """True if the file could not be read; its content may be intact."""


@dataclass(frozen=True)
class Damage:
    """Frames of a file that did not decode; others up to ``seconds`` away replace them."""

    content: str
    seconds: float


def split_request(
    content: str,
    path: str,
    windows: dict[int, Window],
    version: FileVersion | None = None,
    duration: float = 0.0,
    uses_keyframes: bool = False,
) -> Iterator[ClipRequest]:
    """Yield requests for the clips of one file, of up to ``CLIPS_AT_ONCE`` clips each."""
    numbers = sorted(windows)
    start = 0
    while start < len(numbers):
        # 4, 4, 8 and then 16 each.
        count = min(max(start, FIRST_CLIPS), CLIPS_AT_ONCE)
        batch = tuple(numbers[start : start + count])
        start += count
        batch_windows = tuple(windows[number] for number in batch)
        yield ClipRequest(content, path, batch, batch_windows, version, duration, uses_keyframes)


@dataclass(frozen=True)
class DecodedClips:
    """Clips of a request in order, each decoded or failed."""

    clips: tuple[ClipFrames | ClipFailure, ...]
    largest_error: float
    """Seconds to the farthest frame that replaces one that did not decode."""


def decode_ahead(
    requests: Iterable[ClipRequest],
    spec: FrameSpec,
    workers: int,
    limits: Limits | None = None,
    step: float = 0.0,
    gpu_workers: int = 0,
    overlap: float = 0.0,
    host: Host | None = None,
) -> Iterator[ClipFrames | ClipFailure | Damage]:
    """Decode every requested clip once, in order; damage precedes the clips it concerns.

    ``step``: seconds between the frames of a whole clip (``Splitting.frame_step``). ``overlap``:
    seconds by which neighbouring clips overlap; they share the keyframe there. ``host``: see
    :class:`Access`. With workers, requests are read in another thread, a few ahead of the results.
    """
    work = partial(decode_clips, spec=spec, step=step, overlap=overlap)
    budget = decoding_budget(limits or Limits())
    outcomes = map_ahead(
        work,
        requests,
        workers=workers,
        prefetch=PREFETCH,
        budget=budget,
        access=dataclasses.replace(decoding_access(spec, gpu_workers), host=host),
    )
    try:
        yield from flatten_outcomes(outcomes)
    finally:
        OPEN_FILES.close()


def decoding_budget(limits: Limits) -> Budget[ClipRequest]:
    """Return the memory and time for all clips of one file."""
    return Budget(
        limits.memory,
        lambda request: request.content,
        lambda request: limits.time_for(request.duration, request.path),
    )


def decoding_access(spec: FrameSpec, gpu_workers: int = 0) -> Access[ClipRequest, DecodedClips]:
    """Return the file that a decoder may read, and the check of its clips."""
    frame_bytes = CLIPS_AT_ONCE * spec.num_frames * 3 * spec.size**2
    return Access(
        share=lambda request: share(request.path),
        check=partial(check_decoded, spec=spec),
        max_bytes=frame_bytes + CLIPS_AT_ONCE * MAX_THUMBNAIL_BYTES,
        gpu_workers=gpu_workers,
    )


def check_decoded(request: ClipRequest, result: DecodedClips, spec: FrameSpec) -> None:
    """Raise ``ValueError`` if these are not the clips of the request: a worker may be hostile."""
    keys = [(request.content, number) for number in request.numbers]
    if [clip.key for clip in result.clips] != keys:
        raise ValueError("clips of another request")
    if not 0 <= result.largest_error < math.inf:
        raise ValueError(f"frames that are {result.largest_error} s off")
    for clip, window in zip(result.clips, request.windows, strict=True):
        if isinstance(clip, ClipFailure):
            continue
        if (clip.path, clip.window) != (request.path, window):
            raise ValueError("a clip of another file or window")
        if clip.pixels.shape != (spec.num_frames, 3, spec.size, spec.size):
            raise ValueError(f"frames of shape {clip.pixels.shape}")
        if not clip.is_real.shape == clip.times.shape == (spec.num_frames,):
            raise ValueError("not one time per frame")
        if not (np.isfinite(clip.times).all() and clip.is_real.any()):
            raise ValueError("frames without a time")
        if clip.is_from_keyframes and not request.uses_keyframes:
            raise ValueError("a clip from keyframes, where exact frames were requested")
        is_jpeg = clip.thumbnail.startswith(b"\xff\xd8")
        if not is_jpeg or len(clip.thumbnail) > MAX_THUMBNAIL_BYTES:
            raise ValueError("a thumbnail that is not a small JPEG")


def failed_clips(failure: Failure[ClipRequest]) -> Iterator[ClipFailure]:
    """Yield the clips of a request that failed."""
    # A file that was replaced and put back has its old time: the next run must try it again.
    is_temporary = failure.reason == CHANGED
    for number in failure.request.numbers:
        yield ClipFailure((failure.request.content, number), failure.reason, is_temporary)


def flatten_outcomes(
    outcomes: Iterable[Success[ClipRequest, DecodedClips] | Failure[ClipRequest]],
) -> Iterator[ClipFrames | ClipFailure | Damage]:
    """Yield the clips of decoded requests one by one."""
    for outcome in outcomes:
        request = outcome.request
        if isinstance(outcome, Failure):
            yield from failed_clips(outcome)
            continue
        if outcome.result.largest_error:
            yield Damage(request.content, outcome.result.largest_error)
        for clip in outcome.result.clips:
            if isinstance(clip, ClipFailure):
                clip = dataclasses.replace(clip, reason=valid_reason(clip.reason))
            yield clip


def decode_clips(
    request: ClipRequest, spec: FrameSpec, step: float = 0.0, overlap: float = 0.0
) -> DecodedClips:
    """Decode the clips of a request in one pass over the file.

    Clips that a GPU does not decode completely are decoded again on the CPU.
    """
    try:
        require_version(request.path, request.version)
        local = local_path(request.path)
    except OSError as error:
        reason = error.strerror or str(error)
        keys = [(request.content, number) for number in request.numbers]
        return DecodedClips(tuple(ClipFailure(key, reason, is_temporary=True) for key in keys), 0.0)
    if gpu.is_used():
        with contextlib.suppress(VideoDecodeError):
            result = _decode_clips(request, local, spec, step, overlap)
            is_whole = all(isinstance(clip, ClipFrames) for clip in result.clips)
            if is_whole and not result.largest_error:
                return result
        OPEN_FILES.close()
    with gpu.software():
        result = _decode_clips(request, local, spec, step, overlap)
    if gpu.is_used():
        OPEN_FILES.close()
    return result


def _decode_clips(
    request: ClipRequest, local: str, spec: FrameSpec, step: float, overlap: float
) -> DecodedClips:
    from_keyframes: dict[Window | None, DecodedVideo] = {}
    if request.uses_keyframes:
        keyframe_videos = decode_keyframe_windows(
            local,
            spec,
            request.windows,
            thumbnail_size=THUMBNAIL_SIZE,
            overlap=overlap,
        )
        from_keyframes = {video.window: video for video in keyframe_videos}
    videos = dict(from_keyframes)
    rest = [window for window in request.windows if window not in from_keyframes]
    if rest:
        exact = decode_windows(
            local,
            spec,
            rest,
            threads=1,
            skip_damaged=True,
            thumbnail_size=THUMBNAIL_SIZE,
            keep_open=True,
            step=step,
        )
        videos |= {video.window: video for video in exact}
    clips: list[ClipFrames | ClipFailure] = []
    for number, window in zip(request.numbers, request.windows, strict=True):
        key, video = (request.content, number), videos.get(window)
        if video is None or not video.is_real.any():
            clips.append(ClipFailure(key, "too few decodable frames"))
            continue
        thumbnail = pixels_to_jpeg(video.pixels[0] if video.thumbnail is None else video.thumbnail)
        arrays = (video.pixels, video.is_real, video.times)
        is_quick = window in from_keyframes
        clips.append(ClipFrames(key, request.path, window, *arrays, thumbnail, is_quick))
    require_version(request.path, request.version)
    # With fast sampling, frames differ from the sampled times in undamaged files too.
    errors = () if spec.fast else (video.largest_error for video in videos.values())
    return DecodedClips(tuple(clips), max(errors, default=0.0))


def require_version(path: str, version: FileVersion | None) -> None:
    """Raise an error if a file is no longer the one that was hashed."""
    if version is not None and current_version(path) != version:
        raise VideoDecodeError(path, CHANGED)
