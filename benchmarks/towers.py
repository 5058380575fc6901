"""Frames per second of each native tower, compared with transformers (CLIP, SigLIP) or timm (PE).

    python benchmarks/towers.py                       # on a GPU if there is one, bf16, compiled
    python benchmarks/towers.py --quick               # tests the script: two blocks per tower
    python benchmarks/towers.py --towers pe-b siglip-b16 --batch 1536

All sides run in one process, with random weights and frames on the device: ours from uint8, the
other library from normalised pixels. They take turns of half a second (`--turn`), in which calls
are queued without waiting. A product of two large square matrices is a further side. "of ceiling"
is the fraction of its TFLOP/s in the same rounds, "of burst" the fraction of the best of ten such
products after a pause, which cannot be sustained: 776 TFLOP/s on an H200, and 670 over a second, at
the power limit of 700 W. Operations are those of our tower. "cosine" is the smallest between a
frame in this precision, not compiled, and in fp32. Sides whose package is not installed are left
out.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from common import (
    calls_per_second,
    ceiling,
    environment,
    operations,
    save_result,
    square_product,
)
from eaglenet.encoders import ENCODERS
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES
from eaglenet.encoders.openclip import declare_operators
from eaglenet.encoders.perception import PERCEPTION_SHAPES
from eaglenet.encoders.siglip import SIGLIP_SHAPES
from encoding import PRECISIONS

TOWERS: dict[str, tuple[str, Any]] = {
    "clip-b32": ("clip", CLIP_SHAPES["ViT-B/32"]),
    "clip-b16": ("clip", CLIP_SHAPES["ViT-B/16"]),
    "clip-l14": ("clip", CLIP_SHAPES["ViT-L/14"]),
    "clip-l14-336": ("clip", CLIP_SHAPES["ViT-L/14@336px"]),
    "siglip-b16": ("siglip", SIGLIP_SHAPES["google/siglip-base-patch16-224"]),
    "siglip-l16-256": ("siglip", SIGLIP_SHAPES["google/siglip-large-patch16-256"]),
    "siglip-so400m-384": ("siglip", SIGLIP_SHAPES["google/siglip-so400m-patch14-384"]),
    "siglip2-b32-256": ("siglip", SIGLIP_SHAPES["google/siglip2-base-patch32-256"]),
    "pe-t": ("perception", PERCEPTION_SHAPES["PE-Core-T-16-384"]),
    "pe-s": ("perception", PERCEPTION_SHAPES["PE-Core-S-16-384"]),
    "pe-b": ("perception", PERCEPTION_SHAPES["PE-Core-B-16"]),
    "pe-l": ("perception", PERCEPTION_SHAPES["PE-Core-L-14-336"]),
}
"""SigLIP 2 has the image towers of SigLIP at these sizes; only its text towers differ."""
TIMM = {
    "pe-t": "vit_pe_core_tiny_patch16_384",
    "pe-s": "vit_pe_core_small_patch16_384",
    "pe-b": "vit_pe_core_base_patch16_224",
    "pe-l": "vit_pe_core_large_patch14_336",
}
CHECKED = 384
"""Number of frames compared with fp32; for fewer, a GPU might use other kernels."""
FEW_TOKENS = 64
"""Number of tokens per frame up to which a tower needs larger batches to fill a GPU."""
PAUSE = 1.0
"""Seconds for which a GPU cools before the burst."""
Side = Callable[[], Any]


def with_random_weights(model: nn.Module) -> nn.Module:
    """Set small random weights; norms become identities."""
    for name, weight in model.named_parameters():
        if "norm" in name or "ln_" in name:
            nn.init.ones_(weight) if name.endswith("weight") else nn.init.zeros_(weight)
        else:
            nn.init.normal_(weight, std=0.02)
    return model.requires_grad_(False).eval()


def build_ours(family: str, config: Any, device: str, dtype: torch.dtype) -> TowerEncoder:
    """Build the encoder on the device: drawing a billion numbers on a CPU takes a minute."""
    with torch.device("meta"):
        encoder = ENCODERS[family].build(config)
    assert isinstance(encoder, TowerEncoder)
    encoder = encoder.to_empty(device=device).to(dtype)
    with_random_weights(encoder)
    return encoder


def other_side(name: str, family: str, config: Any, dtype: torch.dtype) -> nn.Module | None:
    """Build the image tower of another library on the current device; None if not installed."""
    vision = config.vision
    sizes = {
        "hidden_size": vision.width,
        "intermediate_size": vision.mlp_width,
        "num_hidden_layers": vision.layers,
        "num_attention_heads": vision.heads,
        "image_size": vision.image_size,
        "patch_size": vision.patch_size,
    }
    declare_operators()  # The other libraries import torchvision, whose library may not load.
    try:
        if family == "clip":
            from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

            model = CLIPVisionModelWithProjection(
                CLIPVisionConfig(**sizes, projection_dim=config.dim)
            )
        elif family == "siglip":
            from transformers import SiglipVisionConfig, SiglipVisionModel

            model = SiglipVisionModel(SiglipVisionConfig(**sizes))
        else:
            import timm

            model = timm.create_model(TIMM[name], num_classes=config.dim, depth=vision.layers)
    except ImportError:
        return None
    return with_random_weights(model).to(dtype)


def least_cosine(encoder: TowerEncoder, frames: Tensor, mask: Tensor) -> float:
    """Return the smallest cosine between frames in this precision and in fp32."""
    few = slice(None), slice(CHECKED)
    vectors = encoder.encode_frames(frames[few], mask[few])
    exact = copy.deepcopy(encoder).float().encode_frames(frames[few], mask[few])
    return float(F.cosine_similarity(vectors.float(), exact, dim=-1).min())


def batch_for(name: str, options: argparse.Namespace) -> int:
    """Return the batch size: the option, or a size that fills the device."""
    if options.batch is not None:
        return int(options.batch)
    if options.quick:
        return 2
    if options.device == "cpu":
        return 16
    vision = TOWERS[name][1].vision
    return 2304 if (vision.image_size // vision.patch_size) ** 2 <= FEW_TOKENS else 768


def sides_of(
    name: str, batch: int, options: argparse.Namespace
) -> tuple[dict[str, Side], int, int, float]:
    """Return the sides by name, operations per frame, bytes of the image tower, and the cosine."""
    family, config = TOWERS[name]
    if options.quick:
        vision = dataclasses.replace(config.vision, layers=2)
        config = dataclasses.replace(
            config, vision=vision, text=dataclasses.replace(config.text, layers=1)
        )
    dtype, device = PRECISIONS[options.precision], options.device
    encoder = build_ours(family, config, device, dtype)
    size = encoder.image_size
    frames = torch.randint(0, 256, (1, batch, 3, size, size), device=device).byte()
    mask = torch.ones(1, batch, dtype=torch.bool, device=device)
    count = operations(lambda: encoder.encode_frames(frames[:, :2], mask[:, :2])) // 2
    weights = sum(w.numel() * w.element_size() for w in encoder.vision.parameters())
    cosine = least_cosine(encoder, frames, mask)
    if options.compile:
        encoder.vision.compile(dynamic=False)
    sides: dict[str, Side] = {"ours": lambda: encoder.encode_frames(frames, mask)}
    with torch.device(device):
        other = other_side(name, family, config, dtype)
    if other is not None:
        mean, std = (
            torch.tensor(values, device=device)[:, None, None]
            for values in (config.pixel_mean, config.pixel_std)
        )
        pixels: Tensor = ((frames[0] / 255 - mean) / std).to(dtype)
        call = torch.compile(other, dynamic=False) if options.compile else other
        sides["timm" if family == "perception" else "transformers"] = lambda: call(pixels)
    return sides, count, weights, cosine


def measure(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    dtype, batch = PRECISIONS[options.precision], batch_for(name, options)
    if options.device == "cuda":
        torch.cuda.synchronize()
        time.sleep(PAUSE)
    burst = ceiling(options.device, dtype=dtype)
    sides, count, weights, cosine = sides_of(name, batch, options)
    sides["product"], of_product = square_product(options.device, dtype=dtype)
    rates = calls_per_second(sides, options.device, rounds=options.rounds, turn=options.turn)
    tflops = {
        side: rate * (of_product if side == "product" else batch * count) / 1e12
        for side, rate in rates.items()
    }
    rows = []
    for side, rate in rates.items():
        row: dict[str, Any] = {
            "tower": name,
            "precision": options.precision,
            "compiled": options.compile,
            "batch": batch,
            "side": side,
            "tflops": round(tflops[side], 2),
            "of_ceiling": round(tflops[side] / tflops["product"], 4),
            "of_burst": round(tflops[side] / burst, 4),
            "burst_tflops": round(burst, 2),
        }
        if side != "product":
            row |= {
                "frames_per_second": round(batch * rate, 1),
                "ours_against_it": round(rates["ours"] / rate, 3),
                "operations_per_frame": count,
                "bytes_of_weights": weights,
                "least_cosine_of_ours_with_fp32": round(cosine, 6),
            }
        rows.append(row)
    return rows


def line_of(row: dict[str, Any]) -> str:
    if row["side"] == "product":
        frames = f"{'-':>10} {'-':>7} {'-':>11}"
    else:
        frames = (
            f"{row['frames_per_second']:10,.0f} {row['ours_against_it']:7.2f} "
            f"{row['operations_per_frame'] / 1e9:11.2f}"
        )
    return (
        f"{row['tower']:18} {row['side']:13} {row['batch']:6} {frames} {row['tflops']:8.2f} "
        f"{row['of_ceiling']:10.1%} {row['of_burst']:8.1%}"
    )


def main() -> None:
    is_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if is_gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--towers", nargs="+", choices=list(TOWERS), default=list(TOWERS))
    parser.add_argument("--precision", choices=list(PRECISIONS))
    parser.add_argument(
        "--batch", type=int, help="frames per batch (default: 2304 for few tokens, 768; CPU 16)"
    )
    parser.add_argument("--rounds", type=int, help="number of turns of each side")
    parser.add_argument(
        "--turn", type=float, help="seconds of a turn (default: 0.5; on a CPU one call)"
    )
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--quick", action="store_true", help="two blocks per tower, two frames")
    parser.add_argument("--output", type=Path, help="folder for the result (default: results/)")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    options.precision = options.precision or ("bf16" if on_gpu else "fp32")
    options.rounds = options.rounds or (1 if options.quick else 5 if on_gpu else 3)
    if options.turn is None:
        options.turn = 0.5 if on_gpu and not options.quick else 0.0
    options.compile = on_gpu if options.compile is None else options.compile
    run(options)


@torch.inference_mode()
def run(options: argparse.Namespace) -> None:
    where = environment()
    print(f"{where['gpu'] or where['cpu']}, torch {torch.__version__}, commit {where['commit']}")
    print(
        f"{'tower':18} {'side':13} {'batch':>6} {'frames/s':>10} {'ours x':>7} {'GFLOP/frame':>11} "
        f"{'TFLOP/s':>8} {'of ceiling':>10} {'of burst':>8}"
    )
    rows: list[dict[str, Any]] = []
    settings = {name: value for name, value in vars(options).items() if name != "output"}
    for name in options.towers:
        for row in measure(name, options):
            rows.append(row)
            print(line_of(row), flush=True)
        torch.compiler.reset()
        if options.device == "cuda":
            torch.cuda.empty_cache()
        # Saved after every tower, because compiling takes minutes.
        name_of_result = "towers-quick" if options.quick else "towers"
        path = save_result(
            name_of_result,
            {"settings": settings, "rows": rows},
            options.output,
            device=options.device,
        )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
