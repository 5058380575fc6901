"""Frames and a thumbnail of requested clips, decoded here or ahead in worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from eaglenet.errors import VideoDecodeError
from eaglenet.frame_spec import FrameSpec
from eaglenet.search.indexing.clips import Window
from eaglenet.search.indexing.fetching import local_path, version_now
from eaglenet.search.indexing.files import CHANGED, FileVersion
from eaglenet.video.decoding import decode_windows
from eaglenet.video.held_frames import HeldFrames
from eaglenet.video.kept import KEPT
from eaglenet.video.limits import Limits
from eaglenet.video.pictures import to_jpeg
from eaglenet.video.pixels import Pixels
from eaglenet.video.pool import Budget, Done, Failed, map_ahead

if TYPE_CHECKING:
    # Not in a worker, which these imports would make slower to start and 150 MB larger.
    from eaglenet.search.store.tables import ClipKey

THUMBNAIL_SIZE = 160
"""Shorter side in pixels, of the whole frame: what a model sees is cut to a square."""
CLIPS_AT_ONCE = 16
"""Neighbouring clips that a worker decodes in one pass: 29 MB of pixels for 12 frames of 224. Each
pass decodes from the keyframe before it on, seconds of film whose frames another one gives."""
FIRST_CLIPS = 4
"""Of the first passes over a file, so that encoding begins and other workers have a part early."""
PREFETCH = 4


@dataclass(frozen=True)
class ClipRequest:
    """Neighbouring clips wanted of one file."""

    content: str
    path: str
    numbers: tuple[int, ...]
    windows: tuple[Window, ...]
    version: FileVersion | None = None
    """Of the file that was hashed; one that was exchanged since gives no clips."""
    duration: float = 0.0
    """Of the whole file, which its budget depends on."""


@dataclass(frozen=True)
class ClipFrames(HeldFrames):
    """A decoded clip."""

    key: ClipKey
    path: str
    window: Window
    pixels: Pixels
    """``[frames, 3, size, size]``"""
    is_real: NDArray[np.bool_]
    times: NDArray[np.float32]
    thumbnail: bytes


@dataclass(frozen=True)
class ClipFailure:
    """A clip that gave no frames."""

    key: ClipKey
    reason: str
    is_passing: bool = False
    """Whether the file could not be reached: nothing is said of what is in it."""


@dataclass(frozen=True)
class Damage:
    """Frames of a file did not decode, and others up to ``seconds`` away stand in for them."""

    content: str
    seconds: float


def split_request(
    content: str,
    path: str,
    windows: dict[int, Window],
    version: FileVersion | None = None,
    duration: float = 0.0,
) -> Iterator[ClipRequest]:
    """Requests for the clips of one file, in pieces that travel well."""
    numbers = sorted(windows)
    start = 0
    while start < len(numbers):
        # As many as before it, so 4, 4, 8 and then always 16.
        count = min(max(start, FIRST_CLIPS), CLIPS_AT_ONCE)
        part = tuple(numbers[start : start + count])
        start += count
        chosen = tuple(windows[number] for number in part)
        yield ClipRequest(content, path, part, chosen, version, duration)


@dataclass(frozen=True)
class DecodedClips:
    """What a request gave: each of its clips as frames or as a failure, in order."""

    clips: tuple[ClipFrames | ClipFailure, ...]
    largest_error: float
    """Seconds to the farthest frame that stands in for one that did not decode."""


def decode_ahead(
    requests: Iterable[ClipRequest],
    spec: FrameSpec,
    workers: int,
    limits: Limits | None = None,
    step: float = 0.0,
) -> Iterator[ClipFrames | ClipFailure | Damage]:
    """Every requested clip once, as frames or as a failure, in order; damage before its clips.

    ``step``: seconds between the frames of a whole clip (``Splitting.frame_step``).
    With workers the requests are taken in another thread, a few ahead of the results.
    """
    work = partial(decode_clips, spec=spec, step=step)
    budget = decoding_budget(limits or Limits())
    outcomes = map_ahead(work, requests, workers=workers, prefetch=PREFETCH, budget=budget)
    try:
        yield from spread(outcomes)
    finally:
        KEPT.close()


def decoding_budget(limits: Limits) -> Budget[ClipRequest]:
    """What the clips of one file may cost together."""
    return Budget(
        limits.memory,
        lambda request: request.content,
        lambda request: limits.time_for(request.duration),
    )


def spread(
    outcomes: Iterable[Done[ClipRequest, DecodedClips] | Failed[ClipRequest]],
) -> Iterator[ClipFrames | ClipFailure | Damage]:
    """Clip by clip what requests gave."""
    for outcome in outcomes:
        request = outcome.request
        if isinstance(outcome, Failed):
            for number in request.numbers:
                yield ClipFailure((request.content, number), outcome.reason)
            continue
        if outcome.result.largest_error:
            yield Damage(request.content, outcome.result.largest_error)
        yield from outcome.result.clips


def decode_clips(request: ClipRequest, spec: FrameSpec, step: float = 0.0) -> DecodedClips:
    """The clips of a request in one pass over the file; one that cannot be decoded is a failure."""
    try:
        require_version(request.path, request.version)
        local = local_path(request.path)
    except OSError as error:
        reason = error.strerror or str(error)
        keys = [(request.content, number) for number in request.numbers]
        return DecodedClips(tuple(ClipFailure(key, reason, is_passing=True) for key in keys), 0.0)
    found = {
        video.window: video
        for video in decode_windows(
            local,
            spec,
            request.windows,
            threads=1,
            skip_damaged=True,
            picture_size=THUMBNAIL_SIZE,
            keep_open=True,
            step=step,
        )
    }
    clips: list[ClipFrames | ClipFailure] = []
    for number, window in zip(request.numbers, request.windows, strict=True):
        key, video = (request.content, number), found.get(window)
        if video is None or not video.is_real.any():
            clips.append(ClipFailure(key, "too few of its frames could be decoded"))
            continue
        picture = to_jpeg(video.pixels[0] if video.picture is None else video.picture)
        decoded = (video.pixels, video.is_real, video.times)
        clips.append(ClipFrames(key, request.path, window, *decoded, picture))
    require_version(request.path, request.version)
    # The nearest keyframes are some way off in whole files too.
    errors = () if spec.fast else (video.largest_error for video in found.values())
    return DecodedClips(tuple(clips), max(errors, default=0.0))


def require_version(path: str, version: FileVersion | None) -> None:
    """Refuse a file that is not the one that was hashed: its clips would stand for another's."""
    if version is not None and version_now(path) != version:
        raise VideoDecodeError(path, CHANGED)
