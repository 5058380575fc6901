"""Video files to frames, and back.

    video = decode("clip.mp4", FrameSpec(num_frames=12, size=224))
    video.frames   # uint8 [12, 3, 224, 224]
    video.seconds  # when each was shown

A photograph is a video of one frame and no length (``stills``).
A file that gives no frames raises ``VideoDecodeError``; it never becomes black frames. How frames
are found is in ``picking``, which moments are looked at in ``sampling``, how pixels are made in
``pixels``, how files are written in ``writing``; ``source`` alone imports the decoder (PyAV).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video import images, pixels, windows, writing
from eaglenet.video.containers import is_picture, pyav
from eaglenet.video.picking import decode_through
from eaglenet.video.pool import Done, Failed, map_ahead
from eaglenet.video.sampling import Window, clipped
from eaglenet.video.source import VideoSource, open_video
from eaglenet.video.windows import DecodedVideo, frame_at
from eaglenet.video.writing import read_sound

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource


# Where a film cuts: one pass over small grey frames.

GRID = 32
"""Side in pixels of the pictures that are compared: camera motion hardly shows at this size."""

BINS = 16

SHORTEST_SHOT = 0.5
"""Seconds. Nearer changes are flashes and fades of one cut."""


def find_boundaries(source: VideoSource, threshold: float) -> list[float]:
    """Seconds of frames that differ from the one before by more than ``threshold``.

    difference = mean |g_n - g_{n-1}| / 255 * 1/2 + |h_n - h_{n-1}|_1 / 2 * 1/2

    with g the grey picture and h its histogram, each part between 0 and 1.
    """
    boundaries: list[float] = []
    previous = None
    for time, frame in decode_through(source):
        grey = source.reformatter.reformat(
            frame, width=GRID, height=GRID, format="gray8", interpolation="AREA"
        ).to_ndarray()
        histogram = np.histogram(grey, bins=BINS, range=(0, 256))[0] / grey.size
        if previous is not None:
            moved = np.abs(grey.astype(np.int16) - previous[0]).mean() / 255
            changed = np.abs(histogram - previous[1]).sum() / 2
            seconds = source.seconds(time)
            is_new = not boundaries or seconds - boundaries[-1] >= SHORTEST_SHOT
            if (moved + changed) / 2 > threshold and is_new:
                boundaries.append(seconds)
        previous = (grey.astype(np.int16), histogram)
    return boundaries


__all__ = [
    "DecodedVideo",
    "VideoInfo",
    "VideoSource",
    "Window",
    "decode",
    "decode_image",
    "decode_windows",
    "is_video",
    "open_video",
    "probe",
    "shot_boundaries",
    "thumbnail",
    "write_clip",
    "write_video",
]


@dataclass(frozen=True)
class VideoInfo:
    """What a file says of itself. ``width`` and ``height`` are as shown, so after ``rotation``
    (clockwise degrees); ``num_frames`` is None where the container does not say."""

    duration: float
    fps: float
    width: int
    height: int
    codec: str
    rotation: int
    num_frames: int | None
    is_cut_short: bool = False
    """Whether the end of the video is missing from the file."""
    stretches: tuple[Window, ...] = ()
    """Seconds in which frames are shown; several where times jump. ``duration`` is their sum."""

    @property
    def is_still(self) -> bool:
        """Whether it is a photograph, which alone has no length."""
        return self.duration == 0 and self.num_frames == 1


def decode(
    path: str | Path, spec: FrameSpec, *, window: Window | None = None, threads: int = 0
) -> DecodedVideo:
    """Frames of a video, or of its ``window`` (start, end) in seconds, as ``spec`` says."""
    if is_picture(path):
        return next(images.decode_still(path, spec, [window]))
    with open_video(path, threads=threads) as source:
        return next(windows.decode_windows(source, spec, [window]))


def decode_windows(
    path: str | Path,
    spec: FrameSpec,
    windows_of_file: Sequence[Window],
    *,
    threads: int = 0,
    skip_damaged: bool = False,
    picture_size: int = 0,
    keep_open: bool = False,
    step: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Frames of many windows of one file in a single pass, in the order of their starts.

    Overlapping windows share decoded frames. A window of which too little can be decoded raises,
    or is left out with ``skip_damaged``; ``DecodedVideo.window`` says which window one is. With a
    ``picture_size`` each has the whole of its middle frame, its shorter side that long. With
    ``keep_open`` a file without an index stays open for the next call (``kept``). With a ``step``
    the frames of a window that is long enough lie that many seconds apart, about its middle.
    """
    if is_picture(path):
        yield from images.decode_still(path, spec, windows_of_file, picture_size)
        return
    with open_video(path, threads=threads, keep_open=keep_open) as source:
        yield from windows.decode_windows(
            source, spec, windows_of_file, skip_damaged, picture_size, step
        )


def probe(path: str | Path) -> VideoInfo:
    """What a file says of itself, without decoding more than its first frame."""
    if is_picture(path):
        width, height = images.read_still(path).size
        codec = Path(path).suffix[1:].lower()
        return VideoInfo(0.0, 0.0, width, height, codec, 0, 1, stretches=(images.SPAN,))
    with open_video(path, threads=1) as source:
        source.span()
        first = next((frame for _, frame in decode_through(source)), None)
        if first is None:
            raise VideoDecodeError(path, "no frame could be decoded from it")
        orientation = pixels.Orientation.of(first)
        size = (first.width, first.height)
        stream = source.stream
        rate = stream.average_rate or stream.guessed_rate or 0
        stretches = source.stretches()
        return VideoInfo(
            duration=sum(last - first for first, last in stretches),
            stretches=stretches,
            fps=float(rate),
            width=size[1] if orientation.transposed else size[0],
            height=size[0] if orientation.transposed else size[1],
            codec=stream.codec_context.name,
            rotation=orientation.rotation,
            num_frames=stream.frames or None,
            is_cut_short=source.is_cut_short,
        )


def is_video(path: str | Path) -> bool:
    """Whether a file's content (not its name) is a video with a stream that can be decoded."""
    try:
        source = VideoSource(path, threads=1)
    except VideoDecodeError:
        return False
    source.close()
    return True


def thumbnail(path: str | Path, seconds: float, size: int = 224) -> bytes:
    """JPEG of the frame on show at ``seconds``, upright, its shorter side ``size``."""
    if is_picture(path):
        return images.to_jpeg(images.to_short_side(images.read_still(path), size))
    with open_video(path, threads=1) as source:
        return images.to_jpeg(source.picture(frame_at(source, seconds), size))


def decode_image(path: str | Path, size: int, resize: str = "crop") -> Any:
    """An image file as uint8 [3, size, size], prepared as frames are."""
    return images.decode_image(Path(path), size, resize)


def shot_boundaries(path: str | Path, *, threshold: float = 0.35) -> list[float]:
    """Seconds at which the picture changes at once; the start of the file is not one of them."""
    if is_picture(path):
        return []
    with open_video(path) as source:
        return find_boundaries(source, threshold)


def write_video(
    path: str | Path,
    frames: Any,
    fps: float,
    *,
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
) -> None:
    """Write uint8 ``frames`` [frames, 3, height, width] or [frames, height, width, 3] to a file.

    The container follows from the name's ending.
    """
    if codec not in pyav().codecs_available:
        raise UsageError(f"unknown video codec {codec!r}; libx264, libx265, libvpx-vp9 are known")
    with pyav().open(str(path), "w") as container:
        rate = Fraction(fps).limit_denominator(1001)
        frame_type = pyav().VideoFrame
        writing.encode(container, frames, rate, codec, options, frame_type)


def write_clip(source: str | Path, target: str | Path, start: float, end: float) -> None:
    """Cut ``[start, end)`` seconds with their sound into an MP4 that plays from its first frame."""
    with open_video(source) as opened:
        first, last = clipped(opened, (start, end))
        sound = read_sound(opened, first, last)
        options = {"movflags": "+faststart"}
        try:
            with pyav().open(str(target), "w", format="mp4", options=options) as container:
                writing.cut(opened, container, first, last, sound.write if sound else None)
        except BaseException:
            Path(target).unlink(missing_ok=True)
            raise


# Many videos decoded ahead in worker processes, in order.

logger = logging.getLogger(__name__)


@contextmanager
def silent() -> Iterator[None]:
    """Say nothing of skipped videos: for callers whose own report counts them."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class DecodeRequest(NamedTuple):
    """What to decode; a plain tuple will do."""

    video_id: str
    path: Path | str
    window: Window | None = None


Decoded = Done[DecodeRequest, DecodedVideo]
Skipped = Failed[DecodeRequest]


def decode_request(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """One thread each: several would only fight over the cores with the other workers."""
    return decode(request.path, spec, window=request.window, threads=1)


def decode_many(
    items: Iterable[DecodeRequest | tuple[str, Path | str, Window | None]],
    spec: FrameSpec,
    *,
    workers: int = 0,
    prefetch: int = 8,
) -> Iterator[Decoded | Skipped]:
    """Decode ``items`` and give the outcomes in their order; see :func:`map_ahead`.

    What was skipped is logged at the end, once, with every file and its reason.
    """
    requests = (DecodeRequest(*item) for item in items)
    work = partial(decode_request, spec=spec)
    skipped: list[Skipped] = []
    try:
        for outcome in map_ahead(work, requests, workers=workers, prefetch=prefetch):
            if isinstance(outcome, Failed):
                skipped.append(outcome)
            yield outcome
    finally:
        if skipped:
            lines = "".join(f"\n  {one.request.path}: {one.reason}" for one in skipped)
            logger.warning("%d of the videos were skipped:%s", len(skipped), lines)
