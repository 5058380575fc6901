"""The sound of a part of a video, read whole and written beside new pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.video.containers import pyav
from eaglenet.video.source import VideoSource

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
