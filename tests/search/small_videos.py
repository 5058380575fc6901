"""Videos of plain colours, and a small trained-looking model folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eaglenet.video.decoding import write_clip, write_video

COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}
FPS = 4


def colour_video(path: Path, colours: Sequence[str], seconds_each: int = 3) -> Path:
    """Each colour for a few seconds, 24 x 40 pixels."""
    parts = [
        torch.tensor(COLOURS[name], dtype=torch.uint8)
        .view(1, 3, 1, 1)
        .expand(seconds_each * FPS, 3, 24, 40)
        for name in colours
    ]
    write_video(path, torch.cat(parts), FPS)
    return path


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


def save_small_model(folder: Path, method_name: str = "clip4clip", **config_changes: Any) -> Path:
    """A model with random weights that knows a few words; zero-shot unless a method is named."""
    from eaglenet.encoders.clip import ClipEncoder
    from eaglenet.encoders.clip_tokenizer import ClipTokenizer
    from eaglenet.encoders.config import ClipConfig, TextConfig, VisionConfig
    from eaglenet.methods.base import METHODS
    from eaglenet.methods.folder import save
    from eaglenet.types import FrameSpec

    tokenizer = ClipTokenizer.from_words(["a", "red", "green", "blue", "car"])
    torch.manual_seed(0)
    config = ClipConfig(
        dim=24,
        vision=VisionConfig(image_size=16, patch_size=8, width=12, layers=1, heads=2, mlp_width=20),
        text=TextConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            context_length=32,
            width=18,
            layers=1,
            heads=2,
            mlp_width=28,
        ),
    )
    spec = METHODS[method_name]
    method = spec.build(spec.config_class(**config_changes), ClipEncoder(config))
    method.frame_spec = FrameSpec(num_frames=5, size=16)
    method.tokenizer = tokenizer
    save(method.eval(), folder)
    return folder
