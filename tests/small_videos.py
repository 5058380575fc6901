"""Videos of plain colours, whole, damaged and cut short."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import av
import torch

from eaglenet.video.decoding import write_clip, write_video

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
FPS = 4


def colour_video(path: Path, colours: Sequence[str], seconds_each: int = 3) -> Path:
    """Each colour for a few seconds, 24 x 40 pixels."""
    path.write_bytes(_encoded(path.suffix, tuple(colours), seconds_each))
    return path


@functools.cache
def _encoded(suffix: str, colours: tuple[str, ...], seconds_each: int) -> bytes:
    """Encode once what many tests write: it takes as long as indexing it."""
    parts = [
        torch.tensor(COLOURS[name], dtype=torch.uint8)
        .view(1, 3, 1, 1)
        .expand(seconds_each * FPS, 3, 24, 40)
        for name in colours
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"video{suffix}")
        write_video(path, torch.cat(parts), FPS)
        return path.read_bytes()


def damaged_video(path: Path) -> Path:
    """Six seconds of noise, a keyframe a second, with bytes overwritten in the third."""
    generator = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (6 * FPS, 3, 24, 40), generator=generator, dtype=torch.uint8)
    write_video(path, frames, FPS, options={"g": str(FPS)})
    content = bytearray(path.read_bytes())
    start = len(content) * 2 // 5
    content[start : start + 2000] = bytes(2000)
    path.write_bytes(content)
    return path


def cut_short_video(path: Path) -> Path:
    """The first part of a file that lists all its frames at its start."""
    whole = colour_video(path.with_name("whole.mkv"), ["red", "green", "blue"])
    write_clip(whole, path, 0, 9)
    whole.unlink()
    path.write_bytes(path.read_bytes()[:-200])
    return path


def sound_file(path: Path) -> Path:
    """A second of silence in the container of MP4, as phones record memos."""
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000, layout="mono")
        frame = av.AudioFrame(format="fltp", layout="mono", samples=8000)
        frame.sample_rate = 8000
        frame.planes[0].update(bytes(frame.planes[0].buffer_size))
        container.mux([*stream.encode(frame), *stream.encode(None)])
    return path
