"""Decode video files to frames, and write frames to video files.

    video = decode("clip.mp4", FrameSpec(num_frames=12, size=224))
    video.frames   # uint8 [12, 3, 224, 224]
    video.seconds  # when each frame is shown

An image is a video of one frame and length 0. A file without frames raises ``VideoDecodeError`` and
never gives black frames. ``sampling`` chooses the times, ``windows`` finds the frames, ``pixels``
converts them, ``writing`` encodes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec, ShortVideo
from eaglenet.core.text import pluralize
from eaglenet.video import images, pixels, windows
from eaglenet.video.containers import is_image
from eaglenet.video.images import decode_image as decode_image
from eaglenet.video.input_file import share_file
from eaglenet.video.pixels import Pixels
from eaglenet.video.pool import Access, Failure, Success, map_ahead
from eaglenet.video.reader import decode_through
from eaglenet.video.sampling import Window as Window
from eaglenet.video.sampling import clip_window, fill_frames, uniform_targets
from eaglenet.video.source import VideoSource, open_video
from eaglenet.video.windows import DecodedVideo as DecodedVideo
from eaglenet.video.writing import write_clip as write_clip
from eaglenet.video.writing import write_video as write_video

# Windows from keyframes alone, in one pass. A keyframe refers to no other frame, so decoding it
# takes one packet. A window is represented by the keyframes nearest to a few times in it. Windows
# without a keyframe in or near them, or with one that does not decode, are left out, for
# `windows.decode_windows`.

FRAMES_PER_KEYFRAME = 3
"""A window of 6 frames gets 2 keyframes, one of 12 gets 4."""
REACH = 0.5
"""Maximum distance of a keyframe from its window, as a fraction of the window's length. With 250
frames between keyframes, the default of x264, some windows of a film contain none."""
STEPS_BACK = (0, 1, 10, 60)
"""Seconds before the first target at which to look for a keyframe, tried in order."""


@dataclass
class _Target:
    """A time, the range of keyframes that may represent it, and the best one so far."""

    time: int
    window: tuple[Fraction, Fraction]
    reach: tuple[Fraction, Fraction]
    packet: Any = None

    def offer(self, packet: Any) -> bool:
        """Keep a keyframe if it is better; return False if no later one can be better."""
        if packet.pts > self.reach[1]:
            return False
        if packet.pts < self.reach[0]:
            return True
        if self.packet is None or self._cost(packet) < self._cost(self.packet):
            self.packet = packet
            return True
        return bool(packet.pts <= self.time)

    @property
    def time_of_packet(self) -> int:
        return self.time if self.packet is None else int(self.packet.pts)

    def _cost(self, packet: Any) -> tuple[bool, int]:
        is_outside = not self.window[0] <= packet.pts < self.window[1]
        return is_outside, abs(packet.pts - self.time)


@dataclass
class _Plan:
    """Keyframes of one window."""

    window: Window
    targets: list[_Target]
    frames: dict[int, Pixels] = field(default_factory=dict)
    """Pixels by time."""
    thumbnail: Pixels | None = None
    num_open: int = 0
    """Targets for which a better keyframe may follow."""


def num_keyframes(num_frames: int) -> int:
    """Return the number of keyframes that represent the frames of a window.

    >>> num_keyframes(6), num_keyframes(12), num_keyframes(1)
    (2, 4, 1)
    """
    return max(1, num_frames // FRAMES_PER_KEYFRAME)


def decode_keyframes(
    source: VideoSource,
    spec: FrameSpec,
    windows: Sequence[Window],
    thumbnail_size: int = 0,
    overlap: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Decode windows from keyframes, in the order of their starts; some may be left out.

    Windows that overlap by ``overlap`` seconds share the keyframe in the overlap.
    """
    if not source.is_pickable:
        return  # The times are known only after decoding all frames.
    plans = [_plan(source, spec, window, overlap) for window in sorted(windows)]
    open_targets = [(target, plan) for plan in plans for target in plan.targets]
    decoder = _Decoder(source, spec, thumbnail_size)
    first = min(target.time for target, _ in open_targets)
    last = max(target.reach[1] for target, _ in open_targets)
    next_plan = 0
    for packet in _keyframe_packets(source, first, last):
        still_open = []
        for target, plan in open_targets:
            if target.offer(packet):
                still_open.append((target, plan))
            else:
                decoder.decode(target, plan)
        open_targets = still_open
        decoder.forget_before(min((target.time_of_packet for target, _ in open_targets), default=0))
        while next_plan < len(plans) and not plans[next_plan].num_open:
            yield from _finish(source, spec, plans[next_plan])
            next_plan += 1
        if not open_targets:
            return
    for target, plan in open_targets:
        decoder.decode(target, plan)
    for plan in plans[next_plan:]:
        yield from _finish(source, spec, plan)


def _plan(source: VideoSource, spec: FrameSpec, window: Window, overlap: float) -> _Plan:
    """Choose times in the middle of overlaps and between them, so neighbours share keyframes."""
    start, end = clip_window(source, window)
    count = num_keyframes(spec.num_frames)
    inset = Fraction(overlap / 2) / source.tick
    if overlap and count > 1 and end - start > 2 * inset:
        distance = (end - start - 2 * inset) / (count - 1)
        times = [math.floor(start + inset + index * distance) for index in range(count)]
    else:
        times = uniform_targets(start, end, count, source.tick)
    beyond = Fraction(REACH) * (end - start)
    reach = (start - beyond, end + beyond)
    targets = [_Target(time, (start, end), reach) for time in times]
    return _Plan(window, targets, num_open=len(targets))


def _keyframe_packets(source: VideoSource, first: int, last: Fraction) -> Iterator[Any]:
    """Yield the packets of keyframes from one before ``first`` to the time ``last``."""
    second = math.ceil(1 / source.tick)
    for back in STEPS_BACK:
        source.seek(first - back * second)
        has_landed = False
        for packet in source.packets():
            if packet.pts is None or (packet.dts is not None and packet.dts > last):
                break
            if packet.is_keyframe and not packet.is_discard:
                if not has_landed and not source.has_landed(packet, first):
                    break
                has_landed = True
                yield packet
                if packet.pts > last:
                    break
        if has_landed:
            return


class _Decoder:
    """Decodes keyframes, each of them once even if several windows use it."""

    def __init__(self, source: VideoSource, spec: FrameSpec, thumbnail_size: int) -> None:
        self.source = source
        self.spec = spec
        self.thumbnail_size = thumbnail_size
        self._frames: dict[int, tuple[Any, Pixels] | None] = {}

    def decode(self, target: _Target, plan: _Plan) -> None:
        """Add the keyframe of a target to its plan, if there is one and it decodes."""
        plan.num_open -= 1
        packet = target.packet
        if packet is None:
            return
        if packet.pts not in self._frames:
            self._frames[packet.pts] = self._decode(packet)
        entry = self._frames[packet.pts]
        if entry is None:
            return
        frame, plan.frames[packet.pts] = entry
        if self.thumbnail_size and target is plan.targets[len(plan.targets) // 2]:
            plan.thumbnail = self.source.scaled_pixels(frame, self.thumbnail_size)

    def forget_before(self, time: int) -> None:
        """Free frames that no later window uses."""
        self._frames = {key: frame for key, frame in self._frames.items() if key >= time}

    def _decode(self, packet: Any) -> tuple[Any, Pixels] | None:
        source, errors = self.source, self.source.errors
        source.reset()
        frames = [*source.send(packet), *source.send(None)]
        source.reset()
        for frame in frames:
            if frame.pts == packet.pts and not frame.is_corrupt and source.errors == errors:
                return frame, source.square_pixels(frame, self.spec)
        return None


def _finish(source: VideoSource, spec: FrameSpec, plan: _Plan) -> Iterator[DecodedVideo]:
    """Yield the window if all of its keyframes were decoded."""
    if any(each.packet is None or each.packet.pts not in plan.frames for each in plan.targets):
        return
    times = sorted(plan.frames)
    # Blank frames would weigh as much as the few real ones.
    short: ShortVideo = "mask" if spec.short == "mask" else "repeat"
    indices, mask = fill_frames(len(times), spec.num_frames, short)
    frames = [times[index or 0] for index in indices]
    yield DecodedVideo(
        pixels=np.stack([plan.frames[time] for time in frames]),
        is_real=np.array(mask),
        times=np.array([source.seconds(time) for time in frames], np.float32),
        largest_error=0.0,
        window=plan.window,
        thumbnail=plan.thumbnail,
    )


logger = logging.getLogger(__name__)

GRID = 32
"""Side in pixels of the frames that are compared: small, to ignore camera motion."""

MIN_SHOT_SECONDS = 0.5
"""Minimum seconds between boundaries: closer changes are flashes, or belong to one fade."""

MIN_CHANGE = 0.08
"""Minimum difference of neighbouring frames at a boundary, from 0 to 1."""


@dataclass(frozen=True)
class VideoInfo:
    """Properties of a video file.

    ``width`` and ``height`` are those on display, after ``rotation`` (clockwise degrees).
    ``num_frames`` is None if the container does not declare it.
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
    """Time spans with frames; several if times jump. ``duration`` is their total length."""

    @property
    def is_image(self) -> bool:
        """True for an image, the only kind of video with length 0."""
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

    Overlapping windows share decoded frames. ``DecodedVideo.window`` is the window of a result.

    skip_damaged: skip windows with too few decodable frames, which otherwise raise an error.
    thumbnail_size: shorter side of the uncropped middle frame of each window; 0 for none.
    keep_open: keep a file without an index open for the next call (``reader.OPEN_FILES``).
    step: seconds between frames, around the middle of windows that are long enough for it; 0
        spreads the frames over each window.
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
    overlap: float = 0.0,
) -> Iterator[DecodedVideo]:
    """Decode windows of one file from keyframes alone, with one thread.

    A file without an index stays open for the next call (``reader.OPEN_FILES``).
    Images, and windows with too few keyframes, are left out; use :func:`decode_windows` for them.
    """
    if is_image(path):
        return
    with open_video(path, threads=1, keep_open=True) as source:
        yield from decode_keyframes(source, spec, windows_of_file, thumbnail_size, overlap)


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
    """Return whether the content of a file, regardless of its name, is a decodable video."""
    try:
        source = VideoSource(path, threads=1)
    except VideoDecodeError:
        return False
    source.close()
    return True


def shot_boundaries(path: str | Path) -> list[float]:
    """Return the seconds of cuts and of most fades, without the start of the file."""
    if is_image(path):
        return []
    with open_video(path) as source:
        return _find_boundaries(source)


def _find_boundaries(source: VideoSource) -> list[float]:
    """Return the seconds of frames that differ from the previous one by more than ``MIN_CHANGE``.

    difference = mean |c_n - c_{n-1}| / 255 over hue, saturation and value of a 32 x 32 frame. Hue
    and saturation distinguish shots of equal brightness.
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
            if change > MIN_CHANGE and is_new:
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


@dataclass(frozen=True)
class WindowsRequest:
    """Windows of a file to check; None is the whole file."""

    path: str
    windows: tuple[Window | None, ...] = (None,)


def check_windows(request: WindowsRequest) -> list[str]:
    """Return the problem of each window that is outside its file, else an empty text.

    Raise an error if the file cannot be opened as a video or an image.
    """
    if probe(request.path).is_image or not any(request.windows):
        return [""] * len(request.windows)
    problems = []
    with open_video(request.path, threads=1) as source:
        for window in request.windows:
            try:
                if window is not None:
                    clip_window(source, window)
                problems.append("")
            except VideoDecodeError as error:
                problems.append(error.cause)
    return problems


def decode_query(request: QueryRequest) -> DecodedVideo:
    """Decode an image or video to search with, regardless of its file name."""
    path, spec = request.path, request.spec
    if not request.is_image:
        return decode(path, spec, window=request.window, threads=1)
    frame = decode_image(Path(path), spec.size, spec.resize)
    return images.repeat_frame(frame, spec.num_frames)


def check_query(request: QueryRequest, video: DecodedVideo) -> None:
    """Raise ``ValueError`` if the frames of a worker do not fit the request."""
    check_frames(video, request.spec)


def check_frames(video: DecodedVideo, spec: FrameSpec) -> None:
    """Raise ``ValueError`` if the frames of a worker do not have the shape of ``spec``."""
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
            logger.warning("skipped %s:%s", pluralize(len(failures), "video"), lines)
