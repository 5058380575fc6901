"""Moments cut out of files: video with its sound, a moving picture, a sheet of frames."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video import writing
from eaglenet.video.containers import is_picture, pyav
from eaglenet.video.decoding import write_clip
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import clipped
from eaglenet.video.source import VideoSource, open_video

if TYPE_CHECKING:
    from PIL.Image import Image

EXACT_ENOUGH = 0.25
"""Seconds by which a clip that is copied, not encoded again, may begin too early."""
COPIED_VIDEO = ("h264", "hevc", "av1", "mpeg4")
COPIED_SOUND = ("aac", "mp3", "ac3", "eac3", "opus")
"""What players take out of an MP4."""
COPIED_FROM = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
"""Containers that say when each packet is shown."""
GIF_RATE, GIF_SIDE = 8, 240
"""Pictures a second, and their shorter side."""
SHEET_COLUMNS, SHEET_ROWS, SHEET_SIDE = 4, 3, 180


def save_video(source: str | Path, target: Path, start: float, end: float) -> None:
    """``[start, end)`` seconds with sound as an MP4 that plays from its first frame.

    The streams are copied where a keyframe lies at most ``EXACT_ENOUGH`` before the start and an
    MP4 takes them; otherwise they are encoded again, and begin exactly.
    """
    with open_video(source) as opened:
        first, last = clipped(opened, (start, end))
        keyframe = _near_keyframe(opened, first)
        if keyframe is not None:
            with contextlib.suppress(pyav().FFmpegError, ValueError), _mp4(target) as container:
                _copy(opened, container, keyframe, last)
                return
    write_clip(source, target, start, end)


@contextlib.contextmanager
def _mp4(target: Path) -> Iterator[Any]:
    """An output that leaves no half of a file."""
    options = {"movflags": "+faststart"}
    try:
        with pyav().open(str(target), "w", format="mp4", options=options) as container:
            yield container
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def _near_keyframe(source: VideoSource, first: Fraction) -> int | None:
    """The keyframe to copy from; None where copying would not do."""
    kinds = source.stream.codec_context.name, source.container.format.name
    sound = source.container.streams.audio
    if kinds[0] not in COPIED_VIDEO or kinds[1] not in COPIED_FROM:
        return None
    if sound and sound[0].codec_context.name not in COPIED_SOUND:
        return None
    before = [time for time in source.keyframes() or () if time <= first]
    if not before or (first - before[-1]) * source.tick > EXACT_ENOUGH:
        return None
    return before[-1]


def _copy(source: VideoSource, container: Any, begin: int, last: Fraction) -> None:
    """Packets from a keyframe on, as they are; times count from there."""
    with contextlib.closing(source.reopened()) as again:
        chosen = [again.stream, *again.container.streams.audio[:1]]
        written = {stream.index: container.add_stream_from_template(stream) for stream in chosen}
        zero, end = begin * source.tick, last * source.tick
        again.container.seek(begin, stream=again.stream)
        open_streams = set(written)
        for packet in again.container.demux(chosen):
            if packet.dts is None or packet.pts is None:
                continue
            number, tick = packet.stream.index, Fraction(packet.time_base)
            # The first picture past the end closes its stream: those that come after it in the file
            # and are shown before it refer to it.
            if packet.pts * tick >= end:
                open_streams.discard(number)
                if not open_streams:
                    break
            elif packet.pts * tick >= zero and number in open_streams:
                shift = round(zero / tick)
                packet.pts, packet.dts = packet.pts - shift, packet.dts - shift
                packet.stream = written[number]
                container.mux(packet)


def save_gif(source: str | Path, target: Path, start: float, end: float) -> None:
    """A moving picture without sound, ``GIF_RATE`` pictures a second."""
    count = max(1, round((end - start) * GIF_RATE))
    pictures = [_image(each) for each in _spread(source, start, end, count, GIF_SIDE)]
    first, *rest = pictures
    first.save(target, "GIF", save_all=True, append_images=rest, duration=1000 // GIF_RATE, loop=0)


def save_sheet(source: str | Path, target: Path, start: float, end: float) -> None:
    """Frames of the moment, in rows, as one JPEG."""
    from PIL import Image

    count = SHEET_COLUMNS * SHEET_ROWS
    pictures = [_image(each) for each in _spread(source, start, end, count, SHEET_SIDE)]
    width, height = pictures[0].size
    sheet = Image.new("RGB", (SHEET_COLUMNS * width, SHEET_ROWS * height))
    for number, picture in enumerate(pictures):
        sheet.paste(picture, (number % SHEET_COLUMNS * width, number // SHEET_COLUMNS * height))
    sheet.save(target, "JPEG", quality=88)


def _spread(
    source: str | Path, start: float, end: float, count: int, side: int
) -> Iterator[Pixels]:
    """Whole frames at the middles of ``count`` equal parts of a span."""
    with open_video(source) as opened:
        first, last = clipped(opened, (start, end))
        wanted = [first + (last - first) * (2 * part + 1) / (2 * count) for part in range(count)]
        for time, duration, frame in writing.frames_between(opened, first, last):
            while wanted and time + duration > wanted[0]:
                wanted.pop(0)
                yield opened.picture(frame, min(side, frame.height, frame.width))


def _image(picture: Pixels) -> Image:
    from PIL import Image

    return Image.fromarray(np.ascontiguousarray(picture.transpose(1, 2, 0)))


FORMS: dict[str, tuple[str, Callable[[str | Path, Path, float, float], None]]] = {
    "video": (".mp4", save_video),
    "gif": (".gif", save_gif),
    "sheet": (".jpg", save_sheet),
}
"""Name -> ending and function."""


def moment_name(source: Path, start: float, end: float, form: str = "video") -> str:
    """A file name after the source and the time; a photograph has none and keeps its own."""
    if form not in FORMS:
        raise UsageError(f"clips are saved as {', '.join(FORMS)}, not as {form!r}")
    if is_picture(source):
        return source.name
    return f"{source.stem[:100]} {_spoken(start)}-{_spoken(end)}{FORMS[form][0]}"


def save_moment(source: Path, target: Path, start: float, end: float, form: str = "video") -> None:
    """Save a span of a file; a photograph is copied as it is."""
    if is_picture(source):
        try:
            shutil.copyfile(source, target)
        except shutil.SameFileError:
            raise VideoDecodeError(source, "is in that folder already; save to another") from None
        except OSError as error:
            raise VideoDecodeError(source, f"cannot be copied ({error.strerror})") from error
    else:
        FORMS[form][1](source, target, start, end)


def _spoken(seconds: float) -> str:
    """A time that may stand in the name of a file.

    >>> _spoken(3725.54)
    '1h02m05.5s'
    """
    minutes, rest = divmod(round(seconds * 10), 600)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}m{rest / 10:04.1f}s" if hours else f"{minutes}m{rest / 10:04.1f}s"
