"""The sound of a video, as the samples that models of speech take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.video.containers import pyav
from eaglenet.video.limits import MAX_PACKETS
from eaglenet.video.source import open_container

RATE = 16_000
"""Samples a second."""
Samples = NDArray[np.float32]


def decode_sound(path: str | Path, start: float, end: float) -> Samples | None:
    """One channel of ``[start, end)`` seconds, silent where the file has none.

    None where the file has no sound at all. Shorter than asked where the file ends.
    """
    with contextlib.closing(open_container(Path(path))) as container:
        streams = list(container.streams.audio)
        if not streams or streams[0].codec_context is None:
            return None
        return _decode(container, streams[0], start, end)


def _decode(container: Any, stream: Any, start: float, end: float) -> Samples:
    zero = (container.start_time or 0) / 1e6
    if start > 0:
        with contextlib.suppress(pyav().FFmpegError):
            # A little early: packets refer to those before them.
            container.seek(max(0, int((start - 0.5 + zero) * 1e6)))
    samples = np.zeros(round((end - start) * RATE), np.float32)
    reached = 0
    for seconds, values in _frames(container, stream):
        first = round((seconds - zero - start) * RATE)
        if first >= len(samples):
            break
        begin, skip = max(first, 0), max(-first, 0)
        values = values[skip : skip + len(samples) - begin]
        if len(values):
            samples[begin : begin + len(values)] = values
            reached = max(reached, begin + len(values))
    return samples[:reached]


def _frames(container: Any, stream: Any) -> Iterator[tuple[float, Samples]]:
    """Resampled pieces and when each begins; broken packets are passed over."""
    resampler = pyav().AudioResampler(format="flt", layout="mono", rate=RATE)
    error = pyav().FFmpegError
    clock: float | None = None
    failures = 0
    for count, packet in enumerate(container.demux(stream)):
        if count >= MAX_PACKETS or failures > 1000:
            return
        try:
            frames = packet.decode()
        except error:
            failures += 1
            continue
        for frame in frames:
            if frame.time is not None and (clock is None or abs(frame.time - clock) > 0.1):
                clock = float(frame.time)
                resampler = pyav().AudioResampler(format="flt", layout="mono", rate=RATE)
            # The resampler counts for itself; times are ours.
            frame.pts = None
            for piece in resampler.resample(frame):
                values = piece.to_ndarray().reshape(-1).astype(np.float32)
                begin = clock or 0.0
                clock = begin + len(values) / RATE
                yield begin, values
