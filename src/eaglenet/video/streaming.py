"""Convert a file to a fragmented MP4 that every browser plays, from the second ``START`` on.

    python -m eaglenet.video.streaming HANDLE START PARENT

Streams that browsers can play are copied, from the keyframe before ``START`` on. Others are
converted to H.264 (at most 1280 x 720) and AAC, from exactly ``START`` on. Times begin at 0.

Files may be hostile, so this is a separate process. It inherits an open file, is confined on Linux
(:mod:`eaglenet.video.confinement`), has limited memory and CPU time, and ends with its parent. It
does not import torch, so it starts fast. It writes a line of JSON (``how`` and ``start``, or
``error``) and the MP4 to standard output; the parent must trust neither.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import IO, Any

from eaglenet.core.errors import VideoDecodeError
from eaglenet.core.platform import (
    exit_with_parent,
    handle_to_descriptor,
    limit_memory,
    limit_process,
    lower_priority,
)
from eaglenet.video import confinement
from eaglenet.video.audio import AudioFormat, Resampler
from eaglenet.video.containers import DecodingClock, load_pyav, open_input, pyav, video_stream
from eaglenet.video.limits import MAX_PIXELS

MAX_WIDTH, MAX_HEIGHT, MAX_RATE = 1280, 720, 60
"""Maximum pixels and frames per second of converted video."""
ENCODER = {"preset": "ultrafast", "tune": "zerolatency", "crf": "25"}
AUDIO_RATE = 48_000
TICKS = 90_000
"""Ticks per second of converted video."""


@dataclass(frozen=True)
class Source:
    """An open container and the streams that are played."""

    container: Any
    video: Any
    audio: Any | None
    zero: Fraction
    """Time of the container's clock, in seconds, that players show as 0:00."""

    def seconds(self, item: Any) -> Fraction | None:
        """Return the display time of a packet or frame."""
        if item.pts is None or item.time_base is None:
            return None
        seconds: Fraction = item.pts * item.time_base - self.zero
        return seconds


def decode(packet: Any | None, stream: Any) -> list[Any]:
    """Decode a packet; None drains the decoder. A broken packet gives no frames."""
    try:
        return list(stream.codec_context.decode(packet))
    except pyav().FFmpegError:
        return []


class StreamCopy:
    """Copies the packets of a stream into the MP4."""

    def __init__(self, source: Source, target: Any, stream: Any, begin: Fraction) -> None:
        self.source, self.target, self.begin = source, target, begin
        self.stream = target.add_stream_from_template(stream)
        self.shift = round((begin + source.zero) / stream.time_base)
        self.clock = DecodingClock(stream)

    def take(self, packet: Any) -> None:
        seconds = self.source.seconds(packet)
        if seconds is None or seconds < self.begin:
            return
        dts = self.clock.time(packet)
        if dts is None:
            return
        packet.pts, packet.dts = packet.pts - self.shift, dts - self.shift
        packet.stream = self.stream
        self.target.mux(packet)

    def finish(self) -> None:
        """Do nothing: all packets are written."""


class VideoConverter:
    """Encodes frames as H.264, upright and scaled down if necessary."""

    def __init__(self, source: Source, target: Any, begin: Fraction, rotation: int) -> None:
        self.source, self.target, self.begin, self.rotation = source, target, begin, rotation
        self.width, self.height = _output_size(source.video)
        rate = Fraction(source.video.average_rate or 25)
        self.stream = target.add_stream("libx264", rate=min(rate, Fraction(MAX_RATE)))
        self.stream.options = dict(ENCODER)
        self.stream.pix_fmt = "yuv420p"
        sides = (self.width, self.height) if rotation % 180 == 0 else (self.height, self.width)
        self.stream.width, self.stream.height = sides
        self.stream.codec_context.time_base = Fraction(1, TICKS)
        # A fragment begins with a keyframe.
        self.stream.codec_context.gop_size = max(1, round(2 * min(rate, Fraction(MAX_RATE))))
        self.graph: Any | None = None
        self.last = 0
        self.count = 0
        self.frame_seconds = 1 / rate
        self.min_gap = round(TICKS / MAX_RATE * 0.9)

    def take(self, packet: Any | None) -> None:
        for frame in decode(packet, self.source.video):
            seconds = self.source.seconds(frame)
            if seconds is None:
                seconds = self.begin + self.count * self.frame_seconds
            time = round((seconds - self.begin) * TICKS)
            if time < 0 or (self.count and time < self.last + self.min_gap):
                continue
            self.last = time
            self.count += 1
            output = self._rotate(frame.reformat(self.width, self.height, "yuv420p"))
            output.pts, output.time_base = time, Fraction(1, TICKS)
            output.pict_type = 0
            self.target.mux(self.stream.encode(output))

    def _rotate(self, frame: Any) -> Any:
        if not self.rotation:
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
            if self.rotation == 180:
                steps += [graph.add("hflip"), graph.add("vflip")]
            else:
                steps.append(graph.add("transpose", "clock" if self.rotation == 90 else "cclock"))
            steps.append(graph.add("buffersink"))
            for step, following in itertools.pairwise(steps):
                step.link_to(following)
            graph.configure()
        self.graph.push(frame)
        return self.graph.pull()

    def finish(self) -> None:
        self.take(None)
        self.target.mux(self.stream.encode(None))


def _output_size(video: Any) -> tuple[int, int]:
    """Return even sides within the limits, for square pixels."""
    context = video.codec_context
    ratio = Fraction(context.sample_aspect_ratio or 1)
    width = context.width * (ratio if Fraction(1, 4) <= ratio <= 4 else 1)
    scale = min(Fraction(MAX_WIDTH) / width, Fraction(MAX_HEIGHT, context.height), Fraction(1))
    even_width, even_height = (
        max(2, int(side * scale) // 2 * 2) for side in (width, context.height)
    )
    return even_width, even_height


class AudioConverter:
    """Encodes audio as stereo AAC."""

    def __init__(self, source: Source, target: Any, begin: Fraction) -> None:
        self.source, self.target, self.begin = source, target, begin
        self.stream = target.add_stream("aac", rate=AUDIO_RATE)
        self.stream.layout = "stereo"
        self.resampler = Resampler(AudioFormat(AUDIO_RATE, "stereo"))
        self.next: int | None = None

    def take(self, packet: Any | None) -> None:
        for frame in decode(packet, self.source.audio):
            seconds = self.source.seconds(frame)
            if seconds is None or seconds < self.begin:
                continue
            if self.next is None:
                self.next = round((seconds - self.begin) * AUDIO_RATE)
            self._encode(self.resampler.convert(frame))

    def _encode(self, chunks: list[Any]) -> None:
        for chunk in chunks:
            chunk.pts, chunk.time_base = self.next, Fraction(1, AUDIO_RATE)
            self.next = (self.next or 0) + chunk.samples
            self.target.mux(self.stream.encode(chunk))

    def finish(self) -> None:
        self.take(None)
        if self.next is not None:
            self._encode(self.resampler.convert(None))
            self.target.mux(self.stream.encode(None))


MEMORY = 2 * 2**30
CPU_SECONDS = 3600
"""CPU time per stream; most films need less."""
COPIED_VIDEO = {"h264": ("yuv420p", "yuvj420p"), "vp9": ("yuv420p",), "av1": ("yuv420p",)}
"""Codecs that browsers play in an MP4, with their pixel formats."""
COPIED_AUDIO = ("aac", "mp3", "opus", "flac")
TIMED = ("matroska", "webm", "mov", "mp4", "flv")
"""Containers with display times and keyframe flags. AVI lacks the times, transport streams the
flags."""
STEPS_BACK = (0.0, 2.0, 10.0, 60.0)
"""Seconds before the start at which to look for a decodable frame; the file's start comes last."""
FRAGMENTS = {
    "movflags": "frag_keyframe+empty_moov+default_base_moof",
    "frag_duration": "1000000",
    "flush_packets": "1",
}
MAX_ERRORS = 200
"""Maximum broken packets to skip."""


def open_source(file: IO[bytes]) -> Source:
    """Open the streams of a file; raise ``VideoDecodeError`` if it is not a video."""
    av = pyav()
    try:
        container = open_input(file)
    except (av.FFmpegError, OSError, ValueError) as error:
        raise VideoDecodeError("file", f"not a video that can be read ({error})") from error
    video = video_stream(Path("file"), container)
    if video.codec_context.width * video.codec_context.height > MAX_PIXELS:
        raise VideoDecodeError("file", f"claims more than {MAX_PIXELS} pixels")
    audios = [stream for stream in container.streams.audio if stream.codec_context is not None]
    zero = Fraction(container.start_time or 0, 10**6)
    return Source(container, video, audios[0] if audios else None, zero)


def can_copy(source: Source) -> bool:
    """Return whether browsers can play the video stream unchanged in an MP4."""
    context = source.video.codec_context
    names = source.container.format.name.split(",")
    if not any(name in TIMED for name in names):
        return False
    return context.pix_fmt in COPIED_VIDEO.get(context.name.removeprefix("lib"), ())


def seek(source: Source, start: float) -> None:
    """Seek to ``start`` in a container that was just opened."""
    if start <= 0:
        return
    with contextlib.suppress(pyav().FFmpegError, OverflowError):
        source.container.seek(int((start + float(source.zero)) * 10**6))


def packets(source: Source, *streams: Any) -> Iterator[Any]:
    """Yield the packets of these streams; skip broken ones."""
    errors = 0
    while errors < MAX_ERRORS:
        try:
            for packet in source.container.demux(*streams):
                if packet.size:
                    yield packet
            return
        except pyav().FFmpegError:
            errors += 1


@dataclass(frozen=True)
class StartPoint:
    """Position to read from, in seconds, the keyframe found there, and its rotation."""

    position: float
    keyframe: Fraction
    rotation: int
    """Clockwise degrees by which frames are rotated for display."""


def find_start(file: IO[bytes], start: float) -> StartPoint:
    """Return the position nearest before ``start`` from which frames can be decoded."""
    point: StartPoint | None = None
    for position in [*(start - back for back in STEPS_BACK if back < start), 0.0]:
        file.seek(0)
        point = _first_frame(open_source(file), position)
        if point is not None and point.keyframe <= start + 0.001:
            return point
    if point is None:
        raise VideoDecodeError("file", "no frame can be decoded")
    return point


def _first_frame(source: Source, position: float) -> StartPoint | None:
    seek(source, position)
    keyframe: Fraction | None = None
    with source.container:
        for packet in packets(source, source.video):
            if keyframe is None and packet.is_keyframe:
                keyframe = source.seconds(packet)
            for frame in decode(packet, source.video):
                rotation = round(-getattr(frame, "rotation", 0) / 90) % 4 * 90
                return StartPoint(position, max(keyframe or Fraction(0), Fraction(0)), rotation)
    return None


def stream(file: IO[bytes], start: float, output: IO[bytes]) -> None:
    """Write the line of JSON and the MP4 to ``output``."""
    try:
        point = find_start(file, start)
    except VideoDecodeError as error:
        write_header(output, error=error.cause)
        return
    file.seek(0)
    source = open_source(file)
    is_copied = not point.rotation and can_copy(source)
    begin = point.keyframe if is_copied else Fraction(start)
    write_header(output, how="copy" if is_copied else "convert", start=round(float(begin), 3))
    seek(source, point.position)
    with pyav().open(output, "w", format="mp4", options=FRAGMENTS) as target:
        streams = [source.video]
        outputs: dict[int, StreamCopy | VideoConverter | AudioConverter] = {}
        if is_copied:
            outputs[source.video.index] = StreamCopy(source, target, source.video, begin)
        else:
            outputs[source.video.index] = VideoConverter(source, target, begin, point.rotation)
        if source.audio is not None:
            streams.append(source.audio)
            context = source.audio.codec_context
            # AAC in transport streams has headers in each packet, which an MP4 cannot hold.
            if context.name in COPIED_AUDIO and (context.name != "aac" or context.extradata):
                outputs[source.audio.index] = StreamCopy(source, target, source.audio, begin)
            else:
                outputs[source.audio.index] = AudioConverter(source, target, begin)
        for packet in packets(source, *streams):
            outputs[packet.stream.index].take(packet)
        for each in outputs.values():
            each.finish()


def write_header(output: IO[bytes], **values: object) -> None:
    """Write the line of JSON before the MP4."""
    output.write(json.dumps(values).encode() + b"\n")
    output.flush()


def main() -> None:
    handle, start, parent = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    exit_with_parent(parent)
    lower_priority()
    load_pyav()
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    input_file = os.fdopen(handle_to_descriptor(handle), "rb")
    limit_memory(MEMORY)
    limit_process(cpu_seconds=CPU_SECONDS)
    # x264 encodes in threads.
    confinement.confine()
    try:
        with input_file as file:
            stream(file, start, output)
    except BrokenPipeError:
        os._exit(0)  # The parent has closed the pipe.


if __name__ == "__main__":
    main()
