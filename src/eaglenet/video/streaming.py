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
import json
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import IO, Any

from eaglenet.errors import VideoDecodeError
from eaglenet.video.containers import open_input, pyav
from eaglenet.video.converting import ConvertedSound, ConvertedVideo, Copied, Opened, frames
from eaglenet.video.limits import MAX_PIXELS, bound_memory, die_with_parent

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
    try:
        # No protocol is allowed: the open file is all there is to read.
        container = open_input(file, protocols="none")
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
