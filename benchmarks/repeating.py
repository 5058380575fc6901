"""Long films made quickly: a piece that is encoded once, its packets repeated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglenet.video.containers import pyav


def repeat_piece(
    piece: Path, target: Path, *, turns: int, seconds: int, options: Mapping[str, str] | None = None
) -> None:
    """Write ``piece``, which is ``seconds`` long, ``turns`` times in a row; nothing is encoded."""
    with pyav().open(str(target), "w", options=dict(options or {})) as film:
        stream: Any = None
        for turn in range(turns):
            with pyav().open(str(piece)) as source:
                given = source.streams.video[0]
                if stream is None:
                    stream = film.add_stream_from_template(given)
                    if target.suffix == ".avi":
                        # It counts frames: by a finer clock it would hold empty ones in between.
                        stream.time_base = 1 / given.average_rate
                shift = round(turn * seconds / given.time_base)
                for packet in source.demux(given):
                    if packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                        packet.stream = stream
                        film.mux(packet)
