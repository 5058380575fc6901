"""Writes videos whose frames show their number, readable after any lossy codec.

The number is a grid of 4 x 4 black and white cells over the central square: bit b of the number in
row b // 4, column b % 4. Bits 14 (white) and 15 (black) are fixed and mark the orientation.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from torch import Tensor

os.environ.setdefault("SVT_LOG", "0")  # Otherwise the AV1 encoder writes to the terminal.

CODES = {
    "h264": ("libx264", {"g": "30", "bf": "3"}),
    "hevc": ("libx265", {"x265-params": "log-level=none:keyint=30:bframes=3"}),
    "vp9": ("libvpx-vp9", {"g": "30", "deadline": "realtime", "cpu-used": "8"}),
    # One thread: with several, the order of its last packets can be invalid.
    "av1": ("libsvtav1", {"g": "30", "preset": "12", "svtav1-params": "lp=1"}),
    "mpeg4": ("mpeg4", {"g": "30", "bf": "2"}),
    "intra": ("mjpeg", {}),
}


def picture(number: int, width: int = 64, height: int = 64) -> np.ndarray:
    """Return frame ``number``: a coloured gradient under the grid."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(40, 200, width, dtype=np.uint8)[None]
    image[..., 1] = np.linspace(60, 180, height, dtype=np.uint8)[:, None]
    image[..., 2] = 128
    cell = min(width, height) // 4
    top, left = (height - 4 * cell) // 2, (width - 4 * cell) // 2
    bits = (number & 0x3FFF) | 1 << 14
    for bit in range(16):
        row, column = divmod(bit, 4)
        y, x = top + row * cell, left + column * cell
        image[y : y + cell, x : x + cell] = 235 if bits >> bit & 1 else 20
    return image


def read_numbers(frames: Tensor) -> list[int]:
    """Return the numbers of frames [frames, 3, size, size]; -1 if not upright, or torn."""
    grey = frames.float().mean(dim=1)
    cell = frames.shape[-1] // 4
    numbers = []
    for frame in grey:
        bits = 0
        for bit in range(16):
            row, column = divmod(bit, 4)
            middle = frame[
                row * cell + cell // 4 : (row + 1) * cell - cell // 4,
                column * cell + cell // 4 : (column + 1) * cell - cell // 4,
            ]
            bits |= int(middle.mean() > 128) << bit
        is_upright = bits >> 14 == 1
        numbers.append(bits & 0x3FFF if is_upright else -1)
    return numbers


def write_numbered(
    path: Path,
    num_frames: int = 60,
    *,
    fps: int = 25,
    width: int = 64,
    height: int = 64,
    code: str = "h264",
    options: Mapping[str, str] | None = None,
    container_options: Mapping[str, str] | None = None,
    times: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    rotation: int = 0,
    with_audio: bool = False,
) -> Path:
    """Write numbered frames, at ``times`` (in ``time_base``) if given.

    rotation: clockwise degrees by which players rotate the stored frames for display.
    """
    name, defaults = CODES[code]
    shown_size = (height, width) if rotation % 180 else (width, height)
    with av.open(str(path), "w", options=dict(container_options or {})) as container:
        stream = container.add_stream(name, rate=fps, options={**defaults, **(options or {})})
        stream.width, stream.height = width, height
        stream.pix_fmt = "yuvj420p" if code == "intra" else "yuv420p"
        if time_base is not None:
            stream.codec_context.time_base = time_base
        if rotation:
            # The library counts counter-clockwise.
            stream.set_display_rotation(-rotation)
        audio = add_sound(container) if with_audio else None
        for number in range(num_frames):
            stored_frame = np.rot90(picture(number, *shown_size), k=rotation // 90)
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(stored_frame), format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = time_base or Fraction(1, fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if audio is not None:
            mux_tone(container, audio, num_frames / fps)
    return path


def add_sound(container: av.container.OutputContainer) -> av.AudioStream:
    """Add a stream for :func:`mux_tone`, with a fast encoder setting."""
    return container.add_stream("aac", rate=16000, layout="mono", options={"aac_coder": "fast"})


def mux_tone(
    container: av.container.OutputContainer, stream: av.AudioStream, seconds: float
) -> None:
    samples = np.sin(np.arange(int(16000 * seconds)) / 20).astype(np.float32)[None]
    frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
    frame.sample_rate, frame.pts = 16000, 0
    for part in [frame, None]:
        container.mux(stream.encode(part))


def write_audio_only(path: Path) -> Path:
    with av.open(str(path), "w") as container:
        mux_tone(container, add_sound(container), 2)
    return path


def expected_numbers(
    num_frames: int, count: int, start: Fraction = Fraction(0), end: Fraction | None = None
) -> list[int]:
    """Return the frames at the middles of ``count`` equal segments; start and end in frames."""
    end = Fraction(num_frames) if end is None else end
    step = (end - start) / count
    return [int(start + (i + Fraction(1, 2)) * step) for i in range(count)]
