"""Frames per second of image towers on a CPU in fp32, bf16 and int8, alternately in one process.

    OMP_NUM_THREADS=1 python benchmarks/precision.py     # small, B/32 and B/16: two minutes
    python benchmarks/precision.py --towers b32 --frames 12 --repeats 2

`small` has its own weights, the others random weights of their true shape. bf16 is measured if the
CPU has bf16 products (`--bf16` always measures it; emulated products take minutes), int8 if its
packages are installed. `auto` is the choice of `eaglenet index --precision auto` for much video.
`cosine` is the smallest between a frame in that precision and in fp32. If int8 changes a tower too
much, its row has the error instead of a speed.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from common import save_result
from eaglenet.core.errors import UsageError
from eaglenet.encoders import int8 as int8_products
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES
from eaglenet.encoders.hardware import autocast_for, choose_precision, has_fast_bf16
from eaglenet.models.folder import load

TOWERS = {"small": "small", "b32": "ViT-B/32", "b16": "ViT-B/16"}


def tower_of(name: str) -> tuple[nn.Module, int]:
    """Return an image tower and its input size in pixels."""
    encoder: Any = load("small").encoder if name == "small" else None
    if encoder is None:
        torch.manual_seed(0)
        encoder = ClipEncoder(CLIP_SHAPES[TOWERS[name]])
    return encoder.vision.eval(), encoder.image_size


def make_frames(count: int, size: int) -> Tensor:
    """Make smooth random images, which resemble frames more than noise does."""
    coarse = torch.rand(count, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    smooth = F.interpolate(coarse, size=(size, size), mode="bicubic").clamp(0, 1)
    return (255 * smooth).to(torch.uint8)


@torch.inference_mode()
def measure(name: str, count: int, repeats: int, *, try_bf16: bool) -> dict[str, Any]:
    """Time all precisions alternately, so that other load slows all; keep the best times."""
    tower, size = tower_of(name)
    frames = make_frames(count, size)
    sides: dict[str, nn.Module] = {"fp32": tower}
    row: dict[str, Any] = {"tower": TOWERS[name], "frames": count, "pixels": size}
    if try_bf16 or has_fast_bf16("cpu"):
        sides["bf16"] = tower
    if int8_products.is_installed():
        try:
            start = time.perf_counter()
            sides["int8"] = int8_products.int8_tower(tower, size)
            row["seconds to prepare int8"] = round(time.perf_counter() - start, 2)
        except UsageError as reason:
            row["int8"] = str(reason)
    best = dict.fromkeys(sides, float("inf"))
    outputs: dict[str, Tensor] = {}
    for _ in range(repeats):
        for side, module in sides.items():
            with autocast_for(torch.device("cpu"), side):
                start = time.perf_counter()
                outputs[side] = module(frames)
                best[side] = min(best[side], time.perf_counter() - start)
    for side, seconds in best.items():
        cosines = F.cosine_similarity(outputs[side].flatten(1).float(), outputs["fp32"].flatten(1))
        speed = {"frames_per_second": round(count / seconds, 2), "cosine": float(cosines.min())}
        row[side] = {**speed, "against fp32": round(best["fp32"] / seconds, 2)}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--towers", nargs="+", default=list(TOWERS), choices=list(TOWERS))
    parser.add_argument("--frames", type=int, default=24, help="batch size; a third for B/16")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--bf16", action="store_true", help="measure bf16 even if the CPU emulates it"
    )
    parser.add_argument("--output", type=Path, default=None, help="folder of the result")
    options = parser.parse_args()
    rows = []
    for name in options.towers:
        count = max(1, options.frames // (3 if name == "b16" else 1))
        rows.append(measure(name, count, options.repeats, try_bf16=options.bf16))
        print(rows[-1], flush=True)
    print(save_result("precision", {"auto": choose_precision("cpu"), "rows": rows}, options.output))


if __name__ == "__main__":
    main()
