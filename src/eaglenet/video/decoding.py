"""Decode video files to frames, and write frames to video files.

    video = decode("clip.mp4", FrameSpec(num_frames=12, size=224))
    video.frames   # uint8 [12, 3, 224, 224]
    video.seconds  # when each frame is shown

An image is a video of one frame and length 0. A file without frames raises ``VideoDecodeError``; it
never becomes black frames. ``sampling`` chooses the times, ``windows`` finds the frames, ``pixels``
converts them, ``writing`` encodes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import images, keyframes, pixels, windows
from eaglenet.video.containers import is_image
from eaglenet.video.images import decode_image as decode_image
from eaglenet.video.input_file import share_file
from eaglenet.video.pool import Access, Failure, Success, map_ahead
from eaglenet.video.reader import decode_through
from eaglenet.video.sampling import Window as Window
from eaglenet.video.source import VideoSource, open_video
from eaglenet.video.windows import DecodedVideo as DecodedVideo
from eaglenet.video.writing import write_clip as write_clip
from eaglenet.video.writing import write_video as write_video

logger = logging.getLogger(__name__)

GRID = 32
"""Side in pixels of the frames that are compared: camera motion hardly shows at this size."""

MIN_SHOT_SECONDS = 0.5
"""Changes closer together are flashes, or fades of one cut."""


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video file.

    ``width`` and ``height`` are those on display, after ``rotation`` (clockwise degrees).
    ``num_frames`` is None where the container does not say.
    """

    duration: float
    fps: float
    width: int
    height: int
    codec: str
    rotation: int
    num_frames: int | None
    is_cut_short: bool = False
    """True if the end of the file is missing."""
    spans: tuple[Window, ...] = ()
    """Time spans with frames; several where times jump. ``duration`` is their sum."""

    @property
    def is_image(self) -> bool:
        """True for an image; nothing else has length 0."""
        return self.duration == 0 and self.num_frames == 1


def decode(
    path: str | Path, spec: FrameSpec, *, window: Window | None = None, threads: int = 0
) -> DecodedVideo:
    """Decode the frames of a video, or of its ``window`` (start, end) in seconds."""
    if is_image(path):
        return next(images.decode_image_windows(path, spec, [window]))
    with open_video(path, threads=threads) as source:
        return next(windows.decode_windows(source, spec, [window]))


def decode_windows(
    path: str | Path,
    spec: FrameSpec,
    windows_of_file: Sequence[Window],
    *,
    threads: int = 0,
    skip_damaged: bool = False,
    thumbnail_size: int = 0,
    keep_open: bool = False,
    step: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Decode many windows of one file in a single pass, in the order of their starts.

    Overlapping windows share decoded frames. A window with too few decodable frames raises, or
    is skipped with ``skip_damaged``; ``DecodedVideo.window`` is the window of a result.

    thumbnail_size: shorter side of the uncropped middle frame of each window; 0 makes none.
    keep_open: keep a file without an index open for the next call (``reader.OPEN_FILES``).
    step: seconds between the frames of windows that are long enough, around their middle.
    """
    if is_image(path):
        yield from images.decode_image_windows(path, spec, windows_of_file, thumbnail_size)
        return
    with open_video(path, threads=threads, keep_open=keep_open) as source:
        yield from windows.decode_windows(
            source, spec, windows_of_file, skip_damaged, thumbnail_size, step
        )


def decode_keyframe_windows(
    path: str | Path,
    spec: FrameSpec,
    windows_of_file: Sequence[Window],
    *,
    thumbnail_size: int = 0,
    keep_open: bool = False,
    overlap: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Decode windows of one file from keyframes alone, with one thread.

    Windows that have too few, and images, are left out; :func:`decode_windows` decodes them.
    """
    if is_image(path):
        return
    with open_video(path, threads=1, keep_open=keep_open) as source:
        yield from keyframes.decode_keyframes(
            source, spec, windows_of_file, thumbnail_size, overlap
        )


def probe(path: str | Path) -> VideoInfo:
    """Read the properties of a file; decodes only its first frame."""
    if is_image(path):
        width, height = images.open_image(path).size
        codec = Path(path).suffix[1:].lower()
        return VideoInfo(0.0, 0.0, width, height, codec, 0, 1, spans=(images.IMAGE_WINDOW,))
    with open_video(path, threads=1) as source:
        source.span()
        first = next((frame for _, frame in decode_through(source)), None)
        if first is None:
            raise VideoDecodeError(path, "no frame could be decoded from it")
        orientation = pixels.Orientation.of(first)
        size = (first.width, first.height)
        stream = source.stream
        rate = stream.average_rate or stream.guessed_rate or 0
        spans = source.spans()
        return VideoInfo(
            duration=sum(last - first for first, last in spans),
            spans=spans,
            fps=float(rate),
            width=size[1] if orientation.is_transposed else size[0],
            height=size[0] if orientation.is_transposed else size[1],
            codec=stream.codec_context.name,
            rotation=orientation.rotation,
            num_frames=stream.frames or None,
            is_cut_short=source.is_cut_short,
        )


def is_video(path: str | Path) -> bool:
    """Return whether the content of a file, whatever its name, is a decodable video."""
    try:
        source = VideoSource(path, threads=1)
    except VideoDecodeError:
        return False
    source.close()
    return True


def shot_boundaries(path: str | Path, *, threshold: float = 0.08) -> list[float]:
    """Return the seconds of cuts and of most fades, without the start of the file."""
    if is_image(path):
        return []
    with open_video(path) as source:
        return _find_boundaries(source, threshold)


def _find_boundaries(source: VideoSource, threshold: float) -> list[float]:
    """Return the seconds of frames that differ from the previous one by more than ``threshold``.

    difference = mean |c_n - c_{n-1}| / 255 over hue, saturation and value of a 32 x 32 frame. Hue
    and saturation distinguish shots that are equally bright.
    """
    from PIL import Image

    boundaries: list[float] = []
    previous = None
    for time, frame in decode_through(source):
        small = source.reformatter.reformat(
            frame, width=GRID, height=GRID, format="rgb24", interpolation="AREA"
        ).to_ndarray()
        colours = np.asarray(Image.fromarray(small).convert("HSV"), np.int16)
        if previous is not None:
            change = float(np.abs(colours - previous).mean()) / 255
            seconds = source.seconds(time)
            is_new = not boundaries or seconds - boundaries[-1] >= MIN_SHOT_SECONDS
            if change > threshold and is_new:
                boundaries.append(seconds)
        previous = colours
    return boundaries


@contextmanager
def without_skip_warnings() -> Iterator[None]:
    """Suppress warnings about skipped videos, for callers that report them themselves."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class DecodeRequest(NamedTuple):
    """A video to decode."""

    video_id: str
    path: Path | str
    window: Window | None = None


DecodeOutcome = Success[DecodeRequest, DecodedVideo] | Failure[DecodeRequest]


def decode_request(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """Decode with one thread, since other workers use the other cores."""
    return decode(request.path, spec, window=request.window, threads=1)


class QueryRequest(NamedTuple):
    """An image or video to search with."""

    path: str
    spec: FrameSpec
    is_image: bool
    window: Window | None = None


def require_video(path: str) -> None:
    """Raise an error if a file cannot be opened as a video or an image."""
    probe(path)


def decode_query(request: QueryRequest) -> DecodedVideo:
    """Decode an image or video to search with, whatever the name of its file."""
    path, spec = request.path, request.spec
    if not request.is_image:
        return decode(path, spec, window=request.window, threads=1)
    frame = decode_image(Path(path), spec.size, spec.resize)
    return images.repeat_frame(frame, spec.num_frames)


def check_query(request: QueryRequest, video: DecodedVideo) -> None:
    """Raise ``ValueError`` if a worker's frames do not have the requested shape."""
    check_frames(video, request.spec)


def check_frames(video: DecodedVideo, spec: FrameSpec) -> None:
    """Raise ``ValueError`` if a worker's frames do not have the requested shape."""
    if video.pixels.shape != (spec.num_frames, 3, spec.size, spec.size):
        raise ValueError(f"frames of shape {video.pixels.shape}")
    if not video.is_real.shape == video.times.shape == (spec.num_frames,):
        raise ValueError("not one time per frame")
    if not (np.isfinite(video.times).all() and 0 <= video.largest_error < math.inf):
        raise ValueError("times that are not finite")


def decode_many(
    items: Iterable[DecodeRequest | tuple[str, Path | str, Window | None]],
    spec: FrameSpec,
    *,
    workers: int = 0,
    prefetch: int = 8,
) -> Iterator[DecodeOutcome]:
    """Decode ``items`` ahead in worker processes, in order; see :func:`map_ahead`.

    One warning at the end lists all skipped files with their reasons.
    """
    requests = (DecodeRequest(*item) for item in items)
    work = partial(decode_request, spec=spec)
    failures: list[Failure[DecodeRequest]] = []
    try:
        access: Access[DecodeRequest, DecodedVideo] = Access(
            share=lambda request: share_file(request.path),
            check=lambda request, video: check_frames(video, spec),
        )
        for outcome in map_ahead(work, requests, workers=workers, prefetch=prefetch, access=access):
            if isinstance(outcome, Failure):
                failures.append(outcome)
            yield outcome
    finally:
        if failures:
            lines = "".join(f"\n  {each.request.path}: {each.reason}" for each in failures)
            logger.warning("skipped %d videos:%s", len(failures), lines)
