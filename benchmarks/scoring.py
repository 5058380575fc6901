"""Seconds to score all pairs of 1,000 texts and 1,000 videos, from features to the matrix.

    python benchmarks/scoring.py                      # all parts but the large one
    python benchmarks/scoring.py --large              # also 10,000 x 10,000 with top_k = 10
    python benchmarks/scoring.py --parts rerank       # 100 videos for one query on two CPU cores
    python benchmarks/scoring.py --quick              # tests the script on a CPU, in seconds

EagleNet has random weights, and features are random. Slow sides score a smaller block, and their
time is extrapolated in proportion to the pairs (marked ~). `released loop` is our straightforward
re-creation of the authors' loop (released.py), which exists only for their configuration.
Differences are measured from the reference in fp32. Needs only torch and triton (PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from common import ceiling, environment, save_result, time_calls
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig
from eaglenet.scoring import choose, score_all, score_best
from released import ReleasedScoring

PARTS = ("table", "growth", "rerank")
PRESETS: dict[str, Callable[..., EagleNetConfig]] = {
    "released": lambda **changes: EagleNetConfig.for_script("msrvtt-b16", **changes),
    "paper": EagleNetConfig,
    "released didemo": lambda **changes: EagleNetConfig.for_script("didemo", **changes),
}
SIDES = ("released loop", "reference", "factorised", "kernel")
# Number of texts and of videos that a side scores, on a GPU and on a CPU; None for all.
BLOCKS: dict[str, tuple[int | None, int | None]] = {
    "released loop": (64, 8),
    "reference": (128, 16),
    "factorised": (256, 32),
    "kernel": (None, 16),
}
CHECKED = 64
"""Number of last texts, and of last videos, over which differences are measured."""


def make_method(config: EagleNetConfig, device: str) -> EagleNet:
    """Make a model with noise on every weight, since new weights include identities and zeros."""
    torch.manual_seed(0)
    widths = FeatureConfig(config.dim, config.dim, config.dim, identity=True)
    method = EagleNet.build(config, FeatureEncoder(widths)).eval()
    with torch.no_grad():
        for parameter in method.parameters():
            scale = parameter.shape[-1] ** 0.5 if parameter.dim() > 1 else 3.0
            parameter += 0.3 * torch.randn(parameter.shape) / scale
    return method.to(device)


def make_features(
    config: EagleNetConfig, texts: int, videos: int, device: str
) -> tuple[TextFeatures, VideoFeatures]:
    generator = torch.Generator(device).manual_seed(0)
    shape = (videos, config.num_frames, config.dim)
    frames = torch.randn(shape, generator=generator, device=device)
    mask = torch.ones(shape[:2], dtype=torch.bool, device=device)
    sentence = torch.randn(texts, config.dim, generator=generator, device=device)
    return TextFeatures(sentence), VideoFeatures(frames, mask)


def multiply_adds(config: EagleNetConfig, side: str) -> float:
    """Count the multiply-adds of a pair with two layers, without work per video or per text."""
    dim, heads, frames = config.dim, config.num_heads, config.num_frames
    texts = 1 + config.num_candidates
    head = dim if config.head_size == "full" else dim // heads
    inner = heads * head
    residual = head if config.shared_residual else inner
    other = frames * dim * 2 + dim * dim + frames * dim * 2  # Radius, pooling, its last product.
    nodes = texts + frames
    if side == "released loop":
        first = nodes * dim * (3 * inner + residual) + 3 * nodes * nodes * inner
        last = nodes * inner * (3 * heads * dim + dim) + 3 * nodes * nodes * heads * dim
        return first + last + other + 2 * (frames + 1) * dim * dim  # Keys, values, query, output.
    with_frames = config.edge_weights == "activated"
    width = inner * (2 if with_frames else 1) + residual
    other += dim * dim if side == "reference" else 0  # The query of the pooling.
    # The kernel projects radii, so that the row of the text itself is computed once per text.
    num_rows = config.num_candidates if side == "kernel" else texts
    products = num_rows * dim * (width + 4 * heads)
    messages = texts * (texts + frames) * inner + (frames * texts * inner if with_frames else 0)
    return products + messages + (nodes if with_frames else texts) * inner * heads + other


def side_function(
    side: str, method: EagleNet, precision: str
) -> Callable[[TextFeatures, VideoFeatures], Tensor]:
    if side != "released loop":
        return lambda text, video: score_all(method, text, video, backend=side, precision=precision)
    loop = ReleasedScoring(method).eval()

    @torch.no_grad()
    def score(text: TextFeatures, video: VideoFeatures) -> Tensor:
        with torch.autocast(text.sentence.device.type, torch.bfloat16, precision == "bf16"):
            return loop.score_all(text, video, method.noise)

    return score


def table(options: argparse.Namespace, peak_rate: float) -> list[dict[str, Any]]:
    rows = []
    for preset in options.presets:
        config = PRESETS[preset](energy=None, **options.changes)
        method = make_method(config, options.device)
        text, video = make_features(config, options.texts, options.videos, options.device)
        last = text[-CHECKED:], video[-CHECKED:]
        reference = score_all(method, *last, backend="reference").cpu()
        for precision in options.precisions:
            group = []
            for side in options.sides:
                if side == "released loop" and preset == "paper":
                    continue
                score = side_function(side, method, precision)
                row = measure(score, text, video, side, options)
                rate = 2e-12 * multiply_adds(config, side) * row["pairs"] / row["seconds"]
                row |= {
                    "preset": preset,
                    "precision": precision,
                    "difference": difference(score, text, video, reference, row["extrapolated"]),
                    "multiply_adds": multiply_adds(config, side),
                    "tflops": rate,
                    "of_ceiling": rate / peak_rate,
                }
                group.append(row)
            print_rows(group)
            rows += group
    return rows


def difference(
    score: Callable[[TextFeatures, VideoFeatures], Tensor],
    text: TextFeatures,
    video: VideoFeatures,
    reference: Tensor,
    in_part: bool,
) -> float:
    """Return the largest difference over the last texts and videos.

    The whole matrix is scored unless ``in_part``.
    """
    if in_part:
        text, video = text[-CHECKED:], video[-CHECKED:]
    scores = score(text, video)[-CHECKED:, -CHECKED:]
    return float((scores.cpu() - reference).abs().max())


def measure(
    score: Callable[[TextFeatures, VideoFeatures], Tensor],
    text: TextFeatures,
    video: VideoFeatures,
    side: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """Return the seconds for all pairs, extrapolated from a block for slow sides."""
    on_gpu = options.device == "cuda"
    block = BLOCKS[side][0 if on_gpu else 1] or max(len(text), len(video))
    queries, gallery = text[:block], video[:block]
    score(queries, gallery)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    timing = time_calls(
        lambda: score(queries, gallery), options.device, repeats=options.repeats, warmup=0
    )
    pairs = len(text) * len(video)
    part = len(queries) * len(gallery)
    return {
        "side": side,
        "seconds": timing.median * pairs / part,
        "extrapolated": part < pairs,
        "pairs": pairs,
        "pairs_scored": part,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }


def print_rows(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    base = next((row["seconds"] for row in rows if row["side"] == "released loop"), None)
    slow = next((row["seconds"] for row in rows if row["side"] == "reference"), None)
    print(f"\n{first['preset']}, {first['precision']}: {first['pairs']:,} pairs")
    print(
        f"  {'side':14} {'seconds':>10} {'x released':>10} {'x reference':>11} {'difference':>10} "
        f"{'peak GiB':>8} {'M madd/pair':>11} {'TFLOP/s':>8} {'of ceiling':>10}"
    )
    for row in rows:
        seconds = f"{'~' if row['extrapolated'] else ''}{row['seconds']:.3f}"
        faster = [f"{other / row['seconds']:.1f}x" if other else "-" for other in (base, slow)]
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**30:.2f}"
        print(
            f"  {row['side']:14} {seconds:>10} {faster[0]:>10} {faster[1]:>11} "
            f"{row['difference']:10.1e} {peak:>8} {row['multiply_adds'] / 1e6:11.1f} "
            f"{row['tflops']:8.2f} {row['of_ceiling']:10.1%}"
        )


def growth(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure how the cost of the automatic choice grows with each size; released preset."""
    on_gpu = options.device == "cuda"
    count = options.texts if on_gpu else min(options.texts, 32)
    base = {"texts": count, "videos": count, "frames": 12, "candidates": 20}
    steps = {
        "texts": (count // 2, count, 2 * count),
        "videos": (count // 2, count, 2 * count),
        "frames": (6, 12, 24, 64),
        "candidates": (10, 20, 40),
    }
    precision = "bf16" if on_gpu else "fp32"
    print(f"\ncost over one size, others {base}, released, {precision}")
    print(f"  {'size':12} {'value':>7} {'seconds':>9} {'us/pair':>9} {'peak GiB':>9}")
    rows = []
    for name, values in steps.items():
        for value in values:
            sizes = {**base, name: value}
            changes = {"num_frames": sizes["frames"], "num_candidates": sizes["candidates"]}
            config = PRESETS["released"](energy=None, **{**options.changes, **changes})
            method = make_method(config, options.device)
            features = make_features(config, sizes["texts"], sizes["videos"], options.device)
            score_all(method, *features, precision=precision)
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            timing = time_calls(
                lambda m=method, f=features: score_all(m, *f, precision=precision),
                options.device,
                repeats=2,
                warmup=0,
            )
            peak = torch.cuda.max_memory_allocated() if on_gpu else None
            each = timing.median / sizes["texts"] / sizes["videos"] * 1e6
            rows.append({**sizes, "seconds": timing.median, "peak_bytes": peak})
            gib = "-" if peak is None else f"{peak / 2**30:.2f}"
            print(f"  {name:12} {value:7} {timing.median:9.4f} {each:9.3f} {gib:>9}")
    return rows


def large(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure a streamed top-k at two sizes; memory besides the features should be the same."""
    config = PRESETS["released"](energy=None, **options.changes)
    method = make_method(config, options.device)
    rows = []
    print("\nstreamed top 10, released, bf16")
    for count in options.large_sizes:
        features = make_features(config, count, count, options.device)
        on_gpu = options.device == "cuda"
        feature_bytes = torch.cuda.memory_allocated() if on_gpu else 0
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        timing = time_calls(
            lambda f=features: score_best(method, *f, 10, precision="bf16"),
            options.device,
            repeats=1,
            warmup=0,
        )
        beside = torch.cuda.max_memory_allocated() - feature_bytes if on_gpu else None
        rows.append({"count": count, "seconds": timing.median, "bytes_beside_features": beside})
        gib = "-" if beside is None else f"{beside / 2**30:.3f} GiB"
        print(f"  {count:,} x {count:,}: {timing.median:.2f} s, {gib} besides the features")
    return rows


@torch.no_grad()
def rerank(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Time one query with 100 videos whose per-video part is prepared, on two CPU threads."""
    torch.set_num_threads(2)
    rows = []
    print("\n1 query x 100 videos on 2 CPU threads, fp32, per-video part prepared")
    for preset in ("released", "paper"):
        config = PRESETS[preset](energy=None, **options.changes)
        method = make_method(config, "cpu")
        text, video = make_features(config, 1, 100, "cpu")
        scorer = choose(method, video)
        data = scorer.prepare(video)
        timing = time_calls(lambda s=scorer, d=data, t=text: s.score(t, d), repeats=20)
        difference = float((scorer.score(text, data) - method.score(text, video)).abs().max())
        video_bytes = sum(value.element_size() * value[0].numel() for value in data.values())
        rows.append(
            {
                "preset": preset,
                "seconds": timing.median,
                "best": timing.best,
                "difference": difference,
                "bytes_per_video": video_bytes,
            }
        )
        print(
            f"  {preset:10} median {timing.median * 1e3:.1f} ms, best {timing.best * 1e3:.1f} ms, "
            f"difference {difference:.1e}, {video_bytes / 1024:.0f} KiB per video"
        )
    return rows


def run(options: argparse.Namespace) -> dict[str, Any]:
    where = environment()
    print(f"{where['gpu'] or where['cpu']}, torch {torch.__version__}, commit {where['commit']}")
    results: dict[str, Any] = {}
    if "table" in options.parts:
        results["ceiling_tflops"] = peak_rate = ceiling(options.device)
        print(f"ceiling: {peak_rate:.2f} TFLOP/s, a product of two square matrices")
        results["table"] = table(options, peak_rate)
    if "growth" in options.parts:
        results["growth"] = growth(options)
    if options.large:
        results["large"] = large(options)
    if "rerank" in options.parts:
        results["rerank"] = rerank(options)
    return results


def main() -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if on_gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--presets", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--sides", nargs="+", default=None, choices=SIDES)
    parser.add_argument("--precisions", nargs="+", default=None, choices=["bf16", "fp32"])
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--videos", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="10,000 x 10,000 with top_k = 10")
    parser.add_argument("--quick", action="store_true", help="narrow features, few pairs")
    parser.add_argument("--output", type=Path, help="folder for the result (default: results/)")
    options = parser.parse_args()
    uses_gpu = options.device == "cuda"
    options.sides = options.sides or [side for side in SIDES if uses_gpu or side != "kernel"]
    options.precisions = options.precisions or (["bf16", "fp32"] if uses_gpu else ["fp32"])
    options.changes, options.large_sizes = {}, (2000, 10000)
    if options.quick:
        options.changes, options.large_sizes = {"dim": 64}, (20, 40)
        options.texts, options.videos, options.repeats = 18, 20, 1
    results = run(options)
    settings = {key: value for key, value in vars(options).items() if key != "output"}
    name = "scoring-quick" if options.quick else "scoring"
    if "table" not in options.parts:
        name += "-" + "-".join(options.parts)  # Does not replace the result of all parts.
    path = save_result(
        name, {"settings": settings, **results}, options.output, device=options.device
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
