"""Long films that repeat the packets of a short one, so that they need not be encoded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eaglenet.video.containers import pyav


def repeat_piece(
    piece: Path, target: Path, *, turns: int, seconds: int, options: Mapping[str, str] | None = None
) -> None:
    """Write ``piece``, which takes ``seconds``, ``turns`` times in a row without encoding it."""
    with pyav().open(str(target), "w", options=dict(options or {})) as film:
        stream: Any = None
        for turn in range(turns):
            with pyav().open(str(piece)) as source:
                template = source.streams.video[0]
                if stream is None:
                    stream = film.add_stream_from_template(template)
                    if target.suffix == ".avi":
                        # AVI counts frames: with a finer time base it would contain empty frames.
                        stream.time_base = 1 / template.average_rate
                shift = round(turn * seconds / template.time_base)
                for packet in source.demux(template):
                    if packet.dts is not None:
                        packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                        packet.stream = stream
                        film.mux(packet)
