"""Encoding, for saved clips, demo worlds and test files. Containers are opened in ``decoding``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.video.containers import pyav
from eaglenet.video.picking import decode_through
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import BORDER_TOLERANCE
from eaglenet.video.source import VideoSource

if TYPE_CHECKING:
    from eaglenet.video.source import VideoSource


QUIET = {"libx265": {"x265-params": "log-level=none"}}
"""Encoders that write to the terminal by themselves unless told not to."""

FRAME_DURATION = 1 << 8
"""AV_CODEC_FLAG_FRAME_DURATION: durations of frames reach the container."""

CLIP_OPTIONS = {"crf": "20", "preset": "veryfast"}


def encode(
    container: Any,
    frames: Any,
    fps: Fraction,
    codec: str,
    options: Mapping[str, str] | None,
    frame_type: Any,
) -> None:
    """Encode uint8 ``frames`` into an opened output container."""
    pictures = as_pictures(frames)
    height, width = pictures.shape[1:3]
    stream = container.add_stream(codec, rate=fps)
    stream.options = {**QUIET.get(codec, {}), **(options or {})}
    # 4:2:0 chroma needs even sides; one row or column less does not show.
    stream.width, stream.height = width - width % 2, height - height % 2
    stream.pix_fmt = "yuv420p"
    for number, picture in enumerate(pictures):
        cut = np.ascontiguousarray(picture[: stream.height, : stream.width])
        frame = frame_type.from_ndarray(cut, format="rgb24")
        frame.pts = number
        frame.time_base = 1 / fps
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def as_pictures(frames: Any) -> Pixels:
    """[frames, 3, height, width] or [frames, height, width, 3] as the latter.

    The latter may be anything of that shape that gives one frame after the other.
    """
    # A tensor is known by its method: importing torch for it would take seconds.
    array = frames.numpy() if hasattr(frames, "numpy") else frames
    if array.ndim != 4 or array.dtype != np.uint8 or 3 not in (array.shape[1], array.shape[3]):
        raise UsageError(
            f"frames must be uint8 [frames, 3, height, width] or [frames, height, width, 3], "
            f"not {array.dtype} {list(array.shape)}"
        )
    if len(array) == 0 or min(array.shape[2], *array.shape[1:]) < 2:
        raise UsageError(f"a video needs frames of at least 2x2 pixels, not {list(array.shape)}")
    pictures: Pixels = array if array.shape[3] == 3 else array.transpose(0, 2, 3, 1)
    return pictures


def cut(
    source: VideoSource,
    container: Any,
    first: Fraction,
    last: Fraction,
    add_sound: Callable[[Any], Callable[[], None]] | None = None,
) -> None:
    """Re-encode ticks ``[first, last)``, so that the clip begins at exactly its first frame.

    ``add_sound`` adds a stream to the container and gives the function that fills it.
    """
    stream = fill = None
    begin = 0
    for time, duration, frame in frames_between(source, first, last):
        picture = source.picture(frame, min(frame.width, frame.height)).transpose(1, 2, 0)
        if stream is None:
            height, width = (side - side % 2 for side in picture.shape[:2])
            stream = _clip_stream(container, source, height, width)
            # All streams have to be there before the first packet is.
            fill = add_sound(container) if add_sound is not None else None
            begin = time
        picture = np.ascontiguousarray(picture[: stream.height, : stream.width])
        shown = type(frame).from_ndarray(picture, format="rgb24")
        shown.pts, shown.duration, shown.time_base = time - begin, duration, source.tick
        container.mux(stream.encode(shown))
    if stream is None:
        raise VideoDecodeError(source.path, "no frame between the start and the end of the clip")
    container.mux(stream.encode(None))
    if fill is not None:
        fill()


def _clip_stream(container: Any, source: VideoSource, height: int, width: int) -> Any:
    rate = source.stream.average_rate or 25
    stream = container.add_stream("libx264", rate=rate, options=dict(CLIP_OPTIONS))
    stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
    stream.time_base = stream.codec_context.time_base = source.tick
    # Without it the last frame of a clip has no duration.
    stream.codec_context.flags |= FRAME_DURATION
    return stream


def frames_between(
    source: VideoSource, first: Fraction, last: Fraction
) -> Iterator[tuple[int, int, Any]]:
    """Time, duration and picture of the frame on show at ``first`` and all that follow."""
    tolerance = BORDER_TOLERANCE / source.tick
    shown: tuple[int, Any] | None = None
    for time, frame in decode_through(source, int(first)):
        if time >= last - tolerance:
            break
        if shown is not None and time > first + tolerance:
            yield shown[0], time - shown[0], shown[1]
        shown = (time, frame)
    if shown is not None:
        yield shown[0], max(round(last) - shown[0], 1), shown[1]


# The sound of a part of a video, read whole and written beside new pictures.

RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
"""Samples a second that are kept; others become the last."""
SOUND_FRAME = 1024
"""Samples that AAC takes at once."""
Sound = NDArray[np.float32]
"""``[channels, samples]``."""


class ReadSound:
    """Samples of the sound of a clip, and how to write them."""

    def __init__(self, samples: Sound, rate: int, layout: str) -> None:
        self.samples = samples
        self.rate = rate
        self.layout = layout

    def write(self, container: Any) -> Callable[[], None]:
        """Add a stream for it; the function that is returned fills it."""
        stream = container.add_stream("aac", rate=self.rate, layout=self.layout)

        def fill() -> None:
            for start in range(0, self.samples.shape[1], SOUND_FRAME):
                part = np.ascontiguousarray(self.samples[:, start : start + SOUND_FRAME])
                frame = pyav().AudioFrame.from_ndarray(part, format="fltp", layout=self.layout)
                frame.sample_rate, frame.pts = self.rate, start
                frame.time_base = Fraction(1, self.rate)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))

        return fill


def read_sound(source: VideoSource, first: Fraction, last: Fraction) -> ReadSound | None:
    """The first sound of a file between two ticks of its video; None where there is none.

    Each piece is put where its time says, so that gaps stay silent and nothing drifts.
    """
    begin, end = first * source.tick, last * source.tick
    with contextlib.closing(source.reopened()) as again:
        streams = again.container.streams.audio
        if not streams or streams[0].codec_context is None:
            return None
        stream = streams[0]
        rate = stream.rate if stream.rate in RATES else RATES[-1]
        layout = "mono" if stream.channels == 1 else "stereo"
        samples = np.zeros((1 if layout == "mono" else 2, int((end - begin) * rate)), np.float32)
        resampler = pyav().AudioResampler(format="fltp", layout=layout, rate=rate)
        # Damaged sound is no reason to have no picture.
        with contextlib.suppress(pyav().FFmpegError):
            again.container.seek(int(max(begin - 1, Fraction(0)) * 10**6))
            for frame in again.container.decode(stream):
                if frame.pts is None:
                    continue
                if frame.pts * Fraction(frame.time_base) >= end:
                    break
                for piece in resampler.resample(frame):
                    place = int((piece.pts * Fraction(piece.time_base) - begin) * rate)
                    _put(samples, piece.to_ndarray(), place)
        return ReadSound(samples, rate, layout)


def _put(samples: Sound, piece: Sound, place: int) -> None:
    """``piece`` from ``place`` on, as far as it lies inside."""
    piece = piece[:, max(0, -place) :]
    place = max(0, place)
    room = samples[:, place : place + piece.shape[1]]
    room[:] = piece[:, : room.shape[1]]
