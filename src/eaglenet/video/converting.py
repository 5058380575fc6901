"""The streams of a video as an MP4 for browsers holds them: copied, or made H.264 and AAC."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from eaglenet.video.containers import pyav

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
