"""Frames per second through the image tower, and texts per second through the text tower.

    python benchmarks/encoding.py                     # on the GPU if there is one
    python benchmarks/encoding.py --quick             # a few seconds on a CPU
    python benchmarks/encoding.py --towers b16 --precisions bf16 --batches 256 1024

Our side starts from uint8 frames on the device and ends with un-normalised projections. The other
side is ``CLIPModel`` of transformers, if installed, with random weights, from pixels that are
already normalised. `released loop` re-creates the encoding of the authors' code: eager, with
unfused attention, every token normalised and projected, from normalised float32 frames. Each tower,
precision and batch is measured with all sides taking turns, so that other load slows all of them
alike. Operations are those of our image tower, for every side.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from common import ceiling, environment, operations, save_result, unfused_attention
from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES, ClipConfig
from eaglenet.encoders.openclip import declare_operators

TOWERS = {"b32": "ViT-B/32", "b16": "ViT-B/16", "l14": "ViT-L/14"}
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FRAMES, WORDS = 12, 32

Side = Callable[[], Any]


def build_sides(
    config: ClipConfig, dtype: torch.dtype, device: str, batch: int, options: argparse.Namespace
) -> dict[str, tuple[Side, Side | None]]:
    """Return functions that encode frames and texts, by side."""
    encoder = ClipEncoder(config).to(device, dtype).eval()
    if options.token_shift:
        last = config.vision.layers
        encoder.set_token_shift((last - 2, last - 1))
    generator = torch.Generator().manual_seed(0)
    size = config.vision.image_size
    frames = torch.randint(0, 256, (batch // FRAMES, FRAMES, 3, size, size), generator=generator)
    mask = torch.ones(frames.shape[:2], dtype=torch.bool)
    clips = Clips(frames.to(torch.uint8), mask, torch.zeros(frames.shape[:2])).to(device)
    ids = torch.randint(1, 49000, (batch, WORDS), generator=generator)
    ids[:, -1] = config.text.vocabulary_size - 1
    tokens = Tokens(ids, torch.ones_like(ids, dtype=torch.bool)).to(device)

    sides: dict[str, tuple[Side, Side | None]] = {
        "ours": (lambda: encoder.encode_video(clips), lambda: encoder.encode_text(tokens))
    }
    sides["released loop"] = released_side(encoder, clips, tokens)
    if options.compile:
        compiled_encoder = ClipEncoder(config).to(device, dtype).eval()
        compiled_encoder.load_state_dict(encoder.state_dict())
        if options.token_shift:
            compiled_encoder.set_token_shift((last - 2, last - 1))
        compiled_encoder.compile(mode=options.mode, dynamic=False)
        sides["ours compiled"] = (
            lambda: compiled_encoder.encode_video(clips),
            lambda: compiled_encoder.encode_text(tokens),
        )
    if options.transformers and importlib.util.find_spec("transformers"):
        sides |= transformers_sides(encoder, clips, tokens, options)
    return sides


def released_side(encoder: ClipEncoder, clips: Clips, tokens: Tokens) -> tuple[Side, Side]:
    """Return our re-creation of the authors' loop."""
    pixels = normalise(clips.frames, encoder)

    def frames() -> Tensor:
        with unfused_attention():
            return encoder.encode_frames(pixels, patches=True)  # Projects all tokens.

    def texts() -> Any:
        with unfused_attention():
            return encoder.encode_text(tokens)

    return frames, texts


def transformers_sides(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens, options: argparse.Namespace
) -> dict[str, tuple[Side, Side | None]]:
    declare_operators()  # transformers imports torchvision, whose library may not load.
    from transformers import CLIPConfig, CLIPModel

    dtype, device = encoder.logit_scale.dtype, encoder.device
    text, vision = encoder.config.text, encoder.config.vision
    sizes = [
        {
            "hidden_size": tower.width,
            "num_hidden_layers": tower.layers,
            "num_attention_heads": tower.heads,
            "intermediate_size": tower.mlp_width,
            "hidden_act": tower.activation,
        }
        for tower in (text, vision)
    ]
    config = CLIPConfig(
        projection_dim=encoder.dim,
        text_config={**sizes[0], "vocab_size": text.vocabulary_size},
        vision_config={
            **sizes[1],
            "image_size": vision.image_size,
            "patch_size": vision.patch_size,
        },
    )
    model = CLIPModel(config).to(device, dtype).eval()
    pixels = normalise(clips.frames.flatten(0, 1), encoder).to(dtype)
    sides: dict[str, tuple[Side, Side | None]] = {
        "transformers": (
            lambda: model.get_image_features(pixel_values=pixels),
            lambda: model.get_text_features(input_ids=tokens.ids),
        )
    }
    if options.compile:
        image_features = torch.compile(model.get_image_features, mode=options.mode, dynamic=False)
        sides["transformers compiled"] = (lambda: image_features(pixel_values=pixels), None)
    return sides


def normalise(pixels: Tensor, encoder: ClipEncoder) -> Tensor:
    mean, std = (
        torch.tensor(values, device=pixels.device)[:, None, None]
        for values in (encoder.config.pixel_mean, encoder.config.pixel_std)
    )
    result: Tensor = (pixels / 255 - mean) / std
    return result


def rates(sides: dict[str, Side], count: int, device: str, rounds: int) -> dict[str, float]:
    """Return the items per second of each side: the median over rounds of one call per side."""
    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        for _ in range(3 if device == "cuda" else 1):
            side()
    for _ in range(rounds):
        for name, side in sides.items():
            synchronize()
            start = time.perf_counter()
            side()
            synchronize()
            seconds[name].append(time.perf_counter() - start)
    return {name: count / sorted(times)[len(times) // 2] for name, times in seconds.items()}


def measure(
    tower: str, precision: str, batch: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    config = CLIP_SHAPES[TOWERS[tower]]
    if options.quick:
        # A quarter of the blocks: this tests the script and measures nothing.
        vision = dataclasses.replace(config.vision, layers=config.vision.layers // 4)
        text = dataclasses.replace(config.text, layers=config.text.layers // 4)
        config = dataclasses.replace(config, vision=vision, text=text)
    batch = max(batch // FRAMES, 1) * FRAMES
    sides = build_sides(config, PRECISIONS[precision], options.device, batch, options)
    frames = rates({n: s[0] for n, s in sides.items()}, batch, options.device, options.rounds)
    text_sides = {name: side[1] for name, side in sides.items() if side[1] is not None}
    texts = rates(text_sides, batch, options.device, options.rounds)
    count = operations(sides["ours"][0]) / batch
    element = torch.finfo(PRECISIONS[precision]).bits // 8
    weights = sum(value.numel() for value in ClipEncoder(config).vision.parameters()) * element
    return [
        {
            "tower": TOWERS[tower],
            "precision": precision,
            "batch": batch,
            "side": name,
            "frames_per_second": round(rate, 1),
            "texts_per_second": round(texts[name], 1) if name in texts else None,
            "against_released_loop": round(rate / frames["released loop"], 2),
            "operations_per_frame": count,
            "bytes_of_weights": weights,
            "tflops": count * rate / 1e12,
            "of_ceiling": count * rate / 1e12 / options.ceilings[precision],
        }
        for name, rate in frames.items()
    ]


def main() -> None:
    is_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if is_gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--towers", nargs="+", choices=list(TOWERS))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS))
    parser.add_argument("--batches", nargs="+", type=int, help="frames at a time")
    parser.add_argument("--rounds", type=int, help="turns of each side")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--mode", default="default", help="torch.compile's mode")
    parser.add_argument("--transformers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--token-shift", action="store_true", help="in the last two blocks")
    parser.add_argument(
        "--quick", action="store_true", help="B/32 with fewer blocks, one small batch"
    )
    parser.add_argument("--name", help="name of the result file, without its ending")
    parser.add_argument("--output", type=Path, help="folder for the result (default: results/)")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    options.towers = options.towers or (["b32"] if options.quick else list(TOWERS))
    # Many CPUs have no fast kernels for bf16 and fp16, so these are measured there on request only.
    options.precisions = options.precisions or (["bf16", "fp16", "fp32"] if on_gpu else ["fp32"])
    options.batches = options.batches or (
        [FRAMES] if options.quick else [96, 768] if on_gpu else [24]
    )
    options.rounds = options.rounds or (20 if on_gpu else 1 if options.quick else 3)
    options.compile = on_gpu if options.compile is None else options.compile
    run(options)


@torch.inference_mode()
def run(options: argparse.Namespace) -> None:
    where = environment()
    print(f"{where['gpu'] or where['cpu']}, torch {torch.__version__}, commit {where['commit']}")
    options.ceilings = {
        name: ceiling(options.device, dtype=PRECISIONS[name]) for name in options.precisions
    }
    listing = ", ".join(f"{name} {value:.1f}" for name, value in options.ceilings.items())
    print(f"ceiling, a product of two square matrices: {listing} TFLOP/s")
    print(
        f"{'tower':9} {'precision':9} {'batch':>6} {'side':22} {'frames/s':>10} {'texts/s':>10} "
        f"{'x released':>10} {'GFLOP/frame':>11} {'weights MB':>10} {'TFLOP/s':>8} "
        f"{'of ceiling':>10}"
    )
    rows: list[dict[str, Any]] = []
    for tower in options.towers:
        for precision in options.precisions:
            for batch in options.batches:
                for row in measure(tower, precision, batch, options):
                    rows.append(row)
                    texts = "-" if row["texts_per_second"] is None else row["texts_per_second"]
                    print(
                        f"{row['tower']:9} {precision:9} {row['batch']:6} {row['side']:22} "
                        f"{row['frames_per_second']:10,.0f} {texts:>10} "
                        f"{row['against_released_loop']:9.1f}x "
                        f"{row['operations_per_frame'] / 1e9:11.2f} "
                        f"{row['bytes_of_weights'] / 1e6:10.0f} "
                        f"{row['tflops']:8.2f} {row['of_ceiling']:10.1%}"
                    )
    settings = {"mode": options.mode, "token_shift": options.token_shift, "quick": options.quick}
    name = options.name or ("encoding-quick" if options.quick else "encoding")
    result = {"settings": settings, "ceilings_tflops": options.ceilings, "rows": rows}
    path = save_result(name, result, options.output, device=options.device)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
