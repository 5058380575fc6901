"""A file as every browser plays it: a fragmented MP4, from a moment on.

    python -m eaglenet.video.streaming DESCRIPTOR START PARENT

A process of its own, for files may be hostile: it is handed an open file and can neither name nor
open another, its memory and time are bounded, and it dies with its parent. It imports no torch, so
it is there at once. On its standard output comes one line of JSON (how, start; or error), then the
MP4. Streams that browsers know are copied; then the MP4 begins at the keyframe before ``START``.
Others are made H.264 (at most 1280 x 720) and AAC, from ``START`` exactly. Times begin at 0.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any

from eaglenet.core.errors import VideoDecodeError
from eaglenet.video.containers import CONTAINERS, pyav
from eaglenet.video.limits import MAX_PIXELS, bound_memory, die_with_parent

# The streams of a video as an MP4 for browsers holds them: copied, or made H.264 and AAC.

WIDEST, HIGHEST, FASTEST = 1280, 720, 60
"""Pixels and frames a second that are made at most."""
ENCODER = {"preset": "ultrafast", "tune": "zerolatency", "crf": "25"}
RATE = 48_000
TICKS = 90_000


@dataclass(frozen=True)
class Opened:
    """A container and the streams of it that are played."""

    container: Any
    video: Any
    sound: Any | None
    zero: Fraction
    """Second of the container's clock that players show as 0:00."""

    def seconds(self, item: Any) -> Fraction | None:
        """When a packet or frame is shown."""
        if item.pts is None or item.time_base is None:
            return None
        shown: Fraction = item.pts * item.time_base - self.zero
        return shown


def frames(packet: Any | None, stream: Any) -> list[Any]:
    """What a packet decodes to; ``None`` asks for what is left."""
    try:
        return list(stream.codec_context.decode(packet))
    except pyav().FFmpegError:
        return []


class Copied:
    """A stream whose packets go into the MP4 as they are."""

    def __init__(self, opened: Opened, target: Any, source: Any, begin: Fraction) -> None:
        self.opened, self.target, self.begin = opened, target, begin
        self.stream = target.add_stream_from_template(source)
        self.shift = round((begin + opened.zero) / source.time_base)
        self.last: int | None = None
        held = getattr(source.codec_context, "has_b_frames", 0) or 0
        self.lead = round(held / (source.average_rate or 25) / source.time_base) if held else 0

    def take(self, packet: Any) -> None:
        shown = self.opened.seconds(packet)
        if shown is None or shown < self.begin:
            return
        # Matroska has no times of decoding; after a jump the demuxer needs a few frames to guess.
        decoded = packet.dts
        if decoded is None:
            decoded = packet.pts - self.lead if self.last is None else self.last + 1
        decoded = min(decoded, packet.pts)
        if self.last is not None and decoded <= self.last:
            return
        self.last = decoded
        packet.pts, packet.dts = packet.pts - self.shift, decoded - self.shift
        packet.stream = self.stream
        self.target.mux(packet)

    def finish(self) -> None:
        """Nothing is held back."""


class ConvertedVideo:
    """Frames, upright and not larger than need be, as H.264."""

    def __init__(self, opened: Opened, target: Any, begin: Fraction, turned: int) -> None:
        self.opened, self.target, self.begin, self.turned = opened, target, begin, turned
        self.width, self.height = _shown_size(opened.video)
        rate = Fraction(opened.video.average_rate or 25)
        self.stream = target.add_stream("libx264", rate=min(rate, Fraction(FASTEST)))
        self.stream.options = dict(ENCODER)
        self.stream.pix_fmt = "yuv420p"
        sides = (self.width, self.height) if turned % 180 == 0 else (self.height, self.width)
        self.stream.width, self.stream.height = sides
        self.stream.codec_context.time_base = Fraction(1, TICKS)
        # A fragment begins with a keyframe.
        self.stream.codec_context.gop_size = max(1, round(2 * min(rate, Fraction(FASTEST))))
        self.graph: Any | None = None
        self.last = 0
        self.count = 0
        self.gap = 1 / rate
        self.closest = round(TICKS / FASTEST * 0.9)

    def take(self, packet: Any | None) -> None:
        for frame in frames(packet, self.opened.video):
            shown = self.opened.seconds(frame)
            if shown is None:
                shown = self.begin + self.count * self.gap
            time = round((shown - self.begin) * TICKS)
            if time < 0 or (self.count and time < self.last + self.closest):
                continue
            self.last = time
            self.count += 1
            picture = self._turned(frame.reformat(self.width, self.height, "yuv420p"))
            picture.pts, picture.time_base = time, Fraction(1, TICKS)
            picture.pict_type = 0
            self.target.mux(self.stream.encode(picture))

    def _turned(self, frame: Any) -> Any:
        if not self.turned:
            return frame
        if self.graph is None:
            graph = self.graph = pyav().filter.Graph()
            steps = [
                graph.add_buffer(
                    width=frame.width,
                    height=frame.height,
                    format=frame.format,
                    time_base=Fraction(1, TICKS),
                )
            ]
            if self.turned == 180:
                steps += [graph.add("hflip"), graph.add("vflip")]
            else:
                steps.append(graph.add("transpose", "clock" if self.turned == 90 else "cclock"))
            steps.append(graph.add("buffersink"))
            for one, following in itertools.pairwise(steps):
                one.link_to(following)
            graph.configure()
        self.graph.push(frame)
        return self.graph.pull()

    def finish(self) -> None:
        self.take(None)
        self.target.mux(self.stream.encode(None))


def _shown_size(video: Any) -> tuple[int, int]:
    """Even sides within the limits; pixels become square."""
    context = video.codec_context
    ratio = Fraction(context.sample_aspect_ratio or 1)
    wide = context.width * (ratio if Fraction(1, 4) <= ratio <= 4 else 1)
    scale = min(Fraction(WIDEST) / wide, Fraction(HIGHEST, context.height), Fraction(1))
    width, height = (max(2, int(side * scale) // 2 * 2) for side in (wide, context.height))
    return width, height


class ConvertedSound:
    """Sound as AAC in two channels."""

    def __init__(self, opened: Opened, target: Any, begin: Fraction) -> None:
        self.opened, self.target, self.begin = opened, target, begin
        self.stream = target.add_stream("aac", rate=RATE)
        self.stream.layout = "stereo"
        self.resampler = pyav().AudioResampler(format="fltp", layout="stereo", rate=RATE)
        self.next: int | None = None

    def take(self, packet: Any | None) -> None:
        for frame in frames(packet, self.opened.sound):
            shown = self.opened.seconds(frame)
            if shown is None or shown < self.begin:
                continue
            if self.next is None:
                self.next = round((shown - self.begin) * RATE)
            self._encode(self.resampler.resample(frame))

    def _encode(self, resampled: list[Any]) -> None:
        for part in resampled:
            part.pts, part.time_base = self.next, Fraction(1, RATE)
            self.next = (self.next or 0) + part.samples
            self.target.mux(self.stream.encode(part))

    def finish(self) -> None:
        self.take(None)
        if self.next is not None:
            self._encode(self.resampler.resample(None))
            self.target.mux(self.stream.encode(None))


MEMORY = 2 * 2**30
PROCESSOR_SECONDS = 3600
"""Of one stream: an hour of work, which is longer than most films take."""
COPIED_VIDEO = {"h264": ("yuv420p", "yuvj420p"), "vp9": ("yuv420p",), "av1": ("yuv420p",)}
"""Codecs that browsers play inside MP4, in these kinds of pixels."""
COPIED_SOUND = ("aac", "mp3", "opus", "flac")
TIMED = ("matroska", "webm", "mov", "mp4", "flv")
"""Containers that say when a frame is shown, and which frames can be begun with. In AVI only
decoding tells the first, in transport streams the second."""
STEPS_BACK = (0.0, 2.0, 10.0, 60.0)
"""Seconds before a moment at which a frame to begin with is looked for; then from the start."""
FRAGMENTS = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof",
    "frag_duration": "1000000",
    "flush_packets": "1",
}
MAX_ERRORS = 200
"""Broken packets that are passed over."""


def open_stream(file: IO[bytes]) -> Opened:
    """The streams of an open file; anything that is no video is a ``VideoDecodeError``."""
    av = pyav()
    # No protocol is allowed: the open file is all there is to read.
    options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "none"}
    try:
        container = av.open(file, metadata_errors="replace", options=options)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoDecodeError("file", f"not a video that can be read ({error})") from error
    cover = av.stream.Disposition.attached_pic
    videos = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not videos or videos[0].codec_context is None:
        raise VideoDecodeError("file", "no video stream that can be decoded")
    video = videos[0]
    if video.codec_context.width * video.codec_context.height > MAX_PIXELS:
        raise VideoDecodeError("file", "claims more pixels than any video has")
    sounds = [stream for stream in container.streams.audio if stream.codec_context is not None]
    zero = Fraction(container.start_time or 0, 10**6)
    return Opened(container, video, sounds[0] if sounds else None, zero)


def can_copy(opened: Opened) -> bool:
    """Whether browsers play the video stream as it is, once it lies in an MP4."""
    context = opened.video.codec_context
    names = opened.container.format.name.split(",")
    if not any(name in TIMED for name in names):
        return False
    return context.pix_fmt in COPIED_VIDEO.get(context.name.removeprefix("lib"), ())


def seek(opened: Opened, start: float) -> None:
    """To ``start`` in a container that was just opened."""
    if start <= 0:
        return
    with contextlib.suppress(pyav().FFmpegError):
        opened.container.seek(int((start + float(opened.zero)) * 10**6))


def packets(opened: Opened, *streams: Any) -> Iterator[Any]:
    """Packets of these streams; broken ones are passed over."""
    errors = 0
    while errors < MAX_ERRORS:
        try:
            for packet in opened.container.demux(*streams):
                if packet.size:
                    yield packet
            return
        except pyav().FFmpegError:
            errors += 1


@dataclass(frozen=True)
class Beginning:
    """Where to begin reading so that a moment can be shown."""

    position: float
    keyframe: Fraction
    turned: int
    """Clockwise degrees by which the stored picture is turned for show."""


def beginning(file: IO[bytes], start: float) -> Beginning:
    """The last place before ``start`` from which frames can be decoded."""
    found: Beginning | None = None
    for position in [*(start - back for back in STEPS_BACK if back < start), 0.0]:
        file.seek(0)
        found = _first_frame(open_stream(file), position)
        if found is not None and found.keyframe <= start + 0.001:
            return found
    if found is None:
        raise VideoDecodeError("file", "no frame of it can be decoded")
    return found


def _first_frame(opened: Opened, position: float) -> Beginning | None:
    seek(opened, position)
    keyframe: Fraction | None = None
    with opened.container:
        for packet in packets(opened, opened.video):
            if keyframe is None and packet.is_keyframe:
                keyframe = opened.seconds(packet)
            for frame in frames(packet, opened.video):
                turned = round(-getattr(frame, "rotation", 0) / 90) % 4 * 90
                return Beginning(position, max(keyframe or Fraction(0), Fraction(0)), turned)
    return None


def stream(file: IO[bytes], start: float, output: IO[bytes]) -> None:
    """Write one line of JSON and the MP4."""
    try:
        found = beginning(file, start)
    except VideoDecodeError as error:
        say(output, error=error.cause)
        return
    file.seek(0)
    opened = open_stream(file)
    is_copied = not found.turned and can_copy(opened)
    begin = found.keyframe if is_copied else Fraction(start)
    say(output, how="copy" if is_copied else "convert", start=round(float(begin), 3))
    seek(opened, found.position)
    with pyav().open(output, "w", format="mp4", options=FRAGMENTS) as target:
        streams = [opened.video]
        parts: dict[int, Copied | ConvertedVideo | ConvertedSound] = {}
        if is_copied:
            parts[opened.video.index] = Copied(opened, target, opened.video, begin)
        else:
            parts[opened.video.index] = ConvertedVideo(opened, target, begin, found.turned)
        if opened.sound is not None:
            streams.append(opened.sound)
            context = opened.sound.codec_context
            # In transport streams AAC describes itself in each packet, which an MP4 cannot.
            if context.name in COPIED_SOUND and (context.name != "aac" or context.extradata):
                parts[opened.sound.index] = Copied(opened, target, opened.sound, begin)
            else:
                parts[opened.sound.index] = ConvertedSound(opened, target, begin)
        for packet in packets(opened, *streams):
            parts[packet.stream.index].take(packet)
        for part in parts.values():
            part.finish()


def say(output: IO[bytes], **values: object) -> None:
    """The line before the MP4."""
    output.write(json.dumps(values).encode() + b"\n")
    output.flush()


def main() -> None:
    descriptor, start, parent = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    die_with_parent(parent)
    os.nice(5)
    bound_memory(MEMORY)
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR_SECONDS, PROCESSOR_SECONDS))
    pyav().logging.set_level(None)
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    try:
        with os.fdopen(descriptor, "rb") as file:
            stream(file, start, output)
    except BrokenPipeError:
        os._exit(0)  # Nobody watches any more.


if __name__ == "__main__":
    main()
