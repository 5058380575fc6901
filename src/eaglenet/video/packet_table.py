"""When the frames of a file are shown, found by reading its packets without decoding them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol

from eaglenet.errors import VideoDecodeError
from eaglenet.video.limits import MAX_PACKETS
from eaglenet.video.picking import PacketSource, decode_through

READABLE_PART = 0.25
"""Share of a damaged file's declared length that must be readable."""


class PacketTable(NamedTuple):
    """Times (ticks) found by reading a file's packets without decoding them."""

    times: list[int]
    keyframes: list[int]
    end: int
    places: dict[int, int | None]
    """Byte at which each keyframe lies; the first where several have one time. Empty where packets
    have no times of their own."""


class FileSource(PacketSource, Protocol):
    """What a table is made from: an opened stream that knows its file."""

    path: Path

    @property
    def is_cut_short(self) -> bool:
        """Whether the container lists packets that lie past the end of the file."""

    def declared_seconds(self) -> float | None:
        """How long the video stream says it is, where it says so."""


def read_table(source: FileSource) -> PacketTable:
    """Read a stream from where it is to its end."""
    times: list[int] = []
    keyframes: list[int] = []
    places: dict[int, int | None] = {}
    end = 0
    is_timed = True
    for count, packet in enumerate(source.packets()):
        if count >= MAX_PACKETS:
            raise VideoDecodeError(source.path, f"has more than {MAX_PACKETS} packets")
        # In AVI the n-th frame to be decoded is not the n-th shown, but there are as many.
        time = packet.pts if source.has_times else packet.dts
        is_timed = is_timed and time is not None
        if time is None or packet.is_discard:
            continue
        times.append(time)
        end = max(end, time + (packet.duration or 0))
        if packet.is_keyframe:
            keyframes.append(time)
            places.setdefault(time, packet.pos)
    if not is_timed:
        times = keyframes = [time for time, _ in decode_through(source)]
        places = {}
        end = 0
    if not times:
        raise VideoDecodeError(source.path, "no frame could be read from it")
    times = sorted(times)
    # The last frame is shown as long as the one before it, where nothing else is known.
    last = max(times[-1] - times[-2], 1) if len(times) > 1 else 1
    return PacketTable(times, sorted(keyframes), max(end, times[-1] + last), places)


def check_readable_part(source: FileSource, table: PacketTable) -> None:
    """A file cut short stands for its readable part; one of which little is left does not."""
    declared = source.declared_seconds()
    readable = float((table.end - table.times[0]) * source.tick)
    if declared is not None and readable < READABLE_PART * declared and not source.is_cut_short:
        raise VideoDecodeError(
            source.path, f"damaged: only {readable:.1f} of its {declared:.1f} seconds can be read"
        )
