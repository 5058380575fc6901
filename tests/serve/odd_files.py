"""Real files that browsers cannot play, written with PyAV."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

FPS, SOUND_RATE = 25, 44_100


def write_odd(
    path: Path, codec: str, sound: str | None = None, *, seconds: int = 4, keyframes: int = 25
) -> Path:
    """A bar that moves over a ground that becomes lighter, with a tone."""
    quiet = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    with av.open(str(path), "w") as container:
        video = container.add_stream(codec, rate=FPS)
        video.width, video.height, video.pix_fmt = 160, 96, "yuv420p"
        video.options = {"g": str(keyframes), **quiet}
        tone = container.add_stream(sound, rate=SOUND_RATE) if sound else None
        if tone is not None:
            tone.layout = "stereo"
        for number in range(seconds * FPS):
            picture = np.full((96, 160, 3), 40 + number, np.uint8)
            picture[:, number : number + 20, 0] = 250
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(video.encode(frame))
        container.mux(video.encode(None))
        if tone is not None:
            _write_tone(container, tone, seconds)
    return path


def _write_tone(container: av.container.OutputContainer, tone: object, seconds: int) -> None:
    context = tone.codec_context  # type: ignore[attr-defined]
    resampler = av.AudioResampler(
        format=context.format.name,
        layout="stereo",
        rate=SOUND_RATE,
        frame_size=context.frame_size or 1152,
    )
    wave = np.sin(np.arange(SOUND_RATE * seconds) * (2 * np.pi * 440 / SOUND_RATE)) * 0.3
    for first in range(0, len(wave), 1024):
        part = np.stack([wave[first : first + 1024]] * 2).astype(np.float32)
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="stereo")
        frame.rate, frame.pts, frame.time_base = SOUND_RATE, first, Fraction(1, SOUND_RATE)
        for resampled in resampler.resample(frame):
            container.mux(tone.encode(resampled))  # type: ignore[attr-defined]
    for resampled in resampler.resample(None):
        container.mux(tone.encode(resampled))  # type: ignore[attr-defined]
    container.mux(tone.encode(None))  # type: ignore[attr-defined]
