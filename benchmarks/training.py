"""Time and memory of a training step, and of the Langevin chain alone.

    python benchmarks/training.py                 # ViT-B/16 and ViT-B/32, 64 pairs of 12 frames
    python benchmarks/training.py --quick         # tests the script on a CPU, in seconds
    python benchmarks/training.py --towers b16 --sides ours "ours compiled"

A step is forward, backward, clipping and the optimizer, from uint8 frames on the device, with
random weights and EagleNet's released configuration. `released loop` is our straightforward
re-creation of the authors' step (released.py). The loss of the first step of each side is compared
with a plain step in bf16 and in fp32. Operations are those of our plain step, for every side;
recomputed or discarded results do not count. Needs only torch (PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from common import ceiling, environment, operations, save_result, time_calls, unfused_attention
from eaglenet.core.types import Clips, Losses, PairBatch, Tokens
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES, ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.fp8_gradients import use_fp8_gradients
from eaglenet.energy.energies import ENERGIES
from eaglenet.energy.langevin import ChainRunner, sample
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig
from eaglenet.research.experiments.runs import deterministic_kernels
from eaglenet.research.training.config import Precision, TrainingConfig
from eaglenet.research.training.distributed import World
from eaglenet.research.training.optimizer import (
    build_optimizer,
    freeze_parameters,
    halve_towers,
    parameter_groups,
)
from eaglenet.research.training.step import training_losses
from released import ReleasedLoop

TOWERS = {"b32": "ViT-B/32", "b16": "ViT-B/16"}
SIDES = (
    "ours",
    "ours compiled",
    "ours compiled, 3 blocks recomputed",
    "ours compiled, gradients in fp8",
    "ours checkpointed",
    "released loop",
)
SMALL = ClipConfig(
    dim=64,
    vision=VisionConfig(image_size=32, patch_size=8, width=64, layers=2, heads=2, mlp_width=128),
    text=TextConfig(vocabulary_size=500, width=64, layers=2, heads=2, mlp_width=128),
)
WORDS = 32
Step = Callable[[], Any]


def make_batch(config: ClipConfig, options: argparse.Namespace) -> PairBatch:
    generator = torch.Generator().manual_seed(0)
    size = config.vision.image_size
    shape = (options.pairs, options.frames, 3, size, size)
    frames = torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8)
    mask = torch.ones(shape[:2], dtype=torch.bool)
    last = config.text.vocabulary_size - 1
    ids = torch.randint(1, last, (options.pairs, WORDS), generator=generator)
    ids[:, -1] = last
    return PairBatch(
        Tokens(ids, torch.ones_like(ids, dtype=torch.bool)),
        Clips(frames, mask, torch.zeros(shape[:2])),
        torch.arange(options.pairs),
    ).to(options.device)


def make_method(config: ClipConfig, options: argparse.Namespace) -> EagleNet:
    torch.manual_seed(0)
    settings = EagleNetConfig.for_script("msrvtt-b16", dim=config.dim, num_frames=options.frames)
    method = EagleNet.build(settings, ClipEncoder(config)).to(options.device).train()
    freeze_parameters(method, "embeddings")
    return method


def our_step(config: ClipConfig, side: str, options: argparse.Namespace) -> Step:
    """Make our step: everything that the trainer does between two batches."""
    method = make_method(config, options)
    if side == "ours checkpointed":
        method.encoder.set_gradient_checkpointing(True)  # type: ignore[attr-defined]
    if "recomputed" in side:
        method.encoder.set_gradient_checkpointing(3)  # type: ignore[attr-defined]
    precision: Precision = options.precision
    if "fp8" in side:
        precision = "fp8_gradients"
        use_fp8_gradients(method.encoder, torch.device(options.device))  # type: ignore[arg-type]
    if "compiled" in side:
        method.compile()
    groups = parameter_groups(method, lr_encoder=1e-6, lr_head=1e-4, weight_decay=0.2)
    optimizer = build_optimizer(groups, "adamw")
    batch = make_batch(config, options)
    world = World(device=torch.device(options.device))
    settings = TrainingConfig(precision=precision)

    def step() -> Tensor:
        with deterministic_kernels(world.device, options.deterministic):
            optimizer.zero_grad(set_to_none=True)
            losses = training_losses(method, batch, settings, world, seed=1)
            torch.nn.utils.clip_grad_norm_(method.parameters(), 1.0)
            optimizer.step()
        return losses.total

    return step


def released_step(config: ClipConfig, options: argparse.Namespace) -> Step:
    """Make the re-created step: fp16 towers, eager attention, BERT-style Adam."""
    torch.manual_seed(0)
    encoder = ClipEncoder(config)
    encoder.set_token_shift((config.vision.layers - 2, config.vision.layers - 1))
    loop = ReleasedLoop(encoder, num_frames=options.frames).to(options.device).train()
    freeze_parameters(loop, "embeddings")
    on_gpu = options.device == "cuda"
    if on_gpu:
        halve_towers(loop)
    groups = parameter_groups(
        loop, lr_encoder=1e-7, lr_head=1e-4, weight_decay=0.2, optimizer="bert_adam"
    )
    optimizer = build_optimizer(groups, "bert_adam")
    batch = make_batch(config, options)

    def casts() -> AbstractContextManager[Any]:
        return torch.autocast("cuda", torch.float16) if on_gpu else nullcontext()

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with unfused_attention(), casts():
            loss = loop.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(loop.parameters(), 1.0)
        optimizer.step()

    return step


def measure_step(name: str, step: Step, options: argparse.Namespace) -> dict[str, Any]:
    on_gpu = options.device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
    loss = step()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    timing = time_calls(step, options.device, repeats=options.repeats, warmup=options.warmup)
    peak = torch.cuda.max_memory_allocated() if on_gpu else None
    return {
        "side": name,
        "seconds": timing.median,
        "best": timing.best,
        "in_a_row": seconds_in_a_row(step, options),
        "peak_bytes": peak,
        "loss": None if loss is None else float(loss),
    }


def seconds_in_a_row(step: Step, options: argparse.Namespace) -> float:
    """Return the seconds per step of steps in a row, which wait for the device only at the end.

    Training runs them so: the host starts the kernels of a step while the device computes the last.
    """

    def steps() -> None:
        for _ in range(options.repeats):
            step()

    return time_calls(steps, options.device, repeats=1, warmup=0).median / options.repeats


def plain_losses(config: ClipConfig, options: argparse.Namespace) -> tuple[dict[str, float], int]:
    """Return the total loss of a plain step in fp32 and bf16, and its number of operations.

    A plain step is eager, with unfused attention.
    """
    totals: dict[str, float] = {}
    count = 0
    batch = make_batch(config, options)
    world = World(device=torch.device(options.device))
    precisions: tuple[Precision, Precision] = ("fp32", "bf16")
    for precision in precisions:
        method = make_method(config, options)
        losses: list[Losses] = []

        settings = TrainingConfig(precision=precision)

        def step(model: EagleNet = method, settings: TrainingConfig = settings) -> None:
            losses.append(training_losses(model, batch, settings, world, seed=1))  # noqa: B023

        count = operations(step)
        totals[precision] = float(losses[0].total)
        del method
    return totals, count


def chain_sides(kind: str, options: argparse.Namespace) -> dict[str, Step]:
    """Return the sides of the Langevin chain: autograd, closed form, and CUDA graph."""
    dim = SMALL.dim if options.quick else 512
    energy = ENERGIES[kind](dim).to(options.device)
    texts = torch.rand(options.pairs, dim, device=options.device)
    frames = torch.rand(options.pairs, options.frames, dim, device=options.device)
    energy.requires_grad_(False)

    def through_autograd() -> Any:
        text, clip = texts, frames
        for _ in range(20):
            text, clip = text.detach().requires_grad_(), clip.detach().requires_grad_()
            to_text, to_clip = torch.autograd.grad(energy(text, clip).sum(), (text, clip))
            text = text.detach() - to_text + 0.005 * torch.randn_like(text)
            clip = clip.detach() - to_clip + 0.005 * torch.randn_like(clip)
        return text, clip

    def closed_form() -> Any:
        return sample(energy, texts, frames, deviation=0.005)

    runner = ChainRunner()

    def replay() -> Any:
        return runner(energy, texts, frames, steps=20, step_size=1.0, deviation=0.005)

    sides: dict[str, Step] = {"autograd loop": through_autograd, "closed form": closed_form}
    if options.device == "cuda":
        sides["ours: closed form, CUDA graph"] = replay
    return sides


def run(options: argparse.Namespace) -> dict[str, Any]:
    where = environment()
    print(f"{where['gpu'] or where['cpu']}, torch {torch.__version__}, commit {where['commit']}")
    peak = ceiling(options.device)
    print(f"ceiling: {peak:.2f} TFLOP/s, a product of two square matrices")
    results: dict[str, Any] = {"steps": [], "chains": [], "plain_losses": {}, "operations": {}}
    results["ceiling_tflops"] = peak
    for tower in options.towers:
        config = SMALL if options.quick else CLIP_SHAPES[TOWERS[tower]]
        title = "small" if options.quick else TOWERS[tower]
        print(f"\n{title}: {options.pairs} pairs of {options.frames} frames, EagleNet (released)")
        plain, count = plain_losses(config, options)
        results["plain_losses"][title] = plain
        results["operations"][title] = count
        listing = ", ".join(f"{name} {value:.6f}" for name, value in plain.items())
        print(f"  loss of a plain step: {listing}; {count / 1e12:.3f} T operations")
        rows = []
        for side in options.sides:
            is_released = side == "released loop"
            step = (
                released_step(config, options) if is_released else our_step(config, side, options)
            )
            rows.append({"tower": title, **measure_step(side, step, options)})
            print(f"  {side}: {rows[-1]['seconds']:.4f} s", flush=True)
            del step
            gc.collect()
        for row in rows:
            row["tflops"] = count / row["seconds"] / 1e12
            row["of_ceiling"] = row["tflops"] / peak
        print_steps(rows, plain)
        results["steps"] += rows
    results["chains"] = measure_chains(options)
    return results


def measure_chains(options: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"\nLangevin chain, 20 steps, {options.pairs} pairs of {options.frames} frames")
    rows = []
    for kind in ("cosine", "bilinear", "mlp"):
        base = None
        for name, side in chain_sides(kind, options).items():
            timing = time_calls(side, options.device, repeats=options.repeats)
            base = base or timing.median
            ratio = base / timing.median
            rows.append({"energy": kind, "side": name, "seconds": timing.median})
            print(f"  {kind:9} {name:30} {timing.median * 1e3:9.2f} ms {ratio:7.1f}x")
    return rows


def print_steps(rows: list[dict[str, Any]], plain: dict[str, float]) -> None:
    base = next((row["seconds"] for row in rows if row["side"] == "released loop"), None)
    print(
        f"  {'side':35} {'seconds':>9} {'in a row':>9} {'peak GiB':>9} "
        f"{'against released loop':>22} "
        f"{'TFLOP/s':>9} {'of ceiling':>10} {'loss to plain bf16':>19} {'to fp32':>9}"
    )
    for row in rows:
        peak = f"{row['peak_bytes'] / 2**30:.1f}" if row["peak_bytes"] else "-"
        ratio = f"{base / row['seconds']:.1f}x" if base else "-"
        away = [
            "-" if row["loss"] is None else f"{abs(row['loss'] / plain[name] - 1):.1e}"
            for name in ("bf16", "fp32")
        ]
        print(
            f"  {row['side']:35} {row['seconds']:9.4f} {row['in_a_row']:9.4f} {peak:>9} "
            f"{ratio:>22} {row['tflops']:9.2f} {row['of_ceiling']:10.1%} {away[0]:>19} {away[1]:>9}"
        )


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--towers", nargs="+", default=list(TOWERS), choices=list(TOWERS))
    parser.add_argument("--sides", nargs="+", default=None, choices=SIDES)
    parser.add_argument("--pairs", type=int, default=64)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--precision", default=None, choices=["bf16", "fp32"])
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument(
        "--deterministic",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="use deterministic kernels; EagleNet's recipes for CLIP towers do not",
    )
    parser.add_argument("--quick", action="store_true", help="small towers, few pairs")
    parser.add_argument("--output", type=Path, help="folder for the result (default: results/)")
    options = parser.parse_args()
    uses_gpu = options.device == "cuda"
    if options.quick:
        options.towers = options.towers[:1]
        options = argparse.Namespace(**{**vars(options), "pairs": 6, "frames": 5, "warmup": 1})
    options.precision = options.precision or ("bf16" if uses_gpu else "fp32")
    options.repeats = options.repeats or (10 if uses_gpu else 2)
    # Compiling on a CPU takes longer than the rest of the quick run, so it is left out by default.
    options.sides = options.sides or (
        list(SIDES) if uses_gpu else [side for side in SIDES if "compiled" not in side]
    )
    results = run(options)
    settings = {key: value for key, value in vars(options).items() if key != "output"}
    name = "training-quick" if options.quick else "training"
    path = save_result(
        name, {"settings": settings, **results}, options.output, device=options.device
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
