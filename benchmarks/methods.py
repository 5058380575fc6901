"""Scoring time and memory of every method in one table, and the savings of TempMe's merging.

    python benchmarks/methods.py                  # 1,000 x 1,000 on the GPU if there is one
    python benchmarks/methods.py --quick          # 60 x 60, narrow: a minute on a CPU
    python benchmarks/methods.py --parts tempme --towers b32

`scores`: texts and videos are encoded by the method's own functions (a narrow tower with the grid
of ViT-B/32 and joint width 512, so that features have their true shape); then `score_all` scores
every pair. Seconds are the median of several calls; memory is what scoring needs in addition to
features and weights. `pair_vector_bytes` is the memory of one vector per pair, the minimum for a
method that needs the features of all pairs at once.

`tempme`: TempMe compared with the plain mean of frames, on the real towers with random weights:
tokens of a video after each block, operations, frames per second, and a training step (TempMe
trains its adapters, the plain tower everything).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from common import environment, operations, save_result, time_calls
from eaglenet.core.errors import EagleNetError
from eaglenet.core.types import Clips, TextFeatures, Tokens, VideoFeatures
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES, ClipConfig, TextConfig, VisionConfig
from eaglenet.methods import METHODS, Method
from eaglenet.methods.base import method_title
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.scoring.scorer import score_all

FRAMES, WORDS = 12, 32
HEADS = {
    "clip4clip-lstm": "lstm",
    "clip4clip-transformer": "transformer",
    "clip4clip-tight": "tight",
}
COMPARED = (
    "clip4clip", "xpool", "tmass", "ts2net", "clipvip", "tvproxynet", "video_colbert", "ucofia",
    "prost", "glscl", "tempme", "rap", "tfvl", "shenet", "drl", "wordframe",
)  # fmt: skip
TOWERS = {"b32": "ViT-B/32", "b16": "ViT-B/16"}
CLASSES = {
    "one vector": (
        "clip4clip", "clip4clip-lstm", "clip4clip-transformer", "clipvip", "tempme", "rap", "tfvl",
        "ce", "mmt", "t2vlad", "hit", "teachtext", "supportset", "frozen", "bridgeformer",
    ),
    "late interaction": (
        "ts2net", "drl", "prost", "ucofia", "video_colbert", "glscl", "wordframe", "tvmm", "hgr",
    ),
    "a pair at a time": (
        "xpool", "tmass", "tvproxynet", "eaglenet", "shenet", "clip4clip-tight", "clipbert",
    ),
}  # fmt: skip
PAPER_NAMES = {
    "clip4clip": "CLIP4Clip", "xpool": "XPool", "ts2net": "TS2Net", "clipvip": "CLIP-VIP",
    "ucofia": "UCoFiA (t2v)", "prost": "ProST", "tmass": "TMASS", "glscl": "GLSCL",
    "tempme": "TempMe", "tvproxynet": "TV-ProxyNet", "video_colbert": "Video-ColBERT",
    "eaglenet": "EagleNet",
}  # fmt: skip
CLAIM = "TempMe's abstract: 95% fewer output tokens, 51% fewer operations, 1.8 times as fast"


def cost_class(name: str) -> str:
    """Return the kind of scoring of a method, one of three."""
    return next((title for title, names in CLASSES.items() if name in names), "other")


def narrow_tower(dim: int) -> ClipConfig:
    """Return a tower with 49 patches per frame and few weights, since encoding is not measured."""
    return ClipConfig(
        dim=dim,
        vision=VisionConfig(56, 8, width=64, layers=4, heads=1, mlp_width=64),
        text=TextConfig(
            vocabulary_size=500, context_length=77, width=64, layers=2, heads=1, mlp_width=64
        ),
    )


def build(name: str, dim: int, device: str) -> Method:
    """Build a method with its default configuration on the narrow tower."""
    method = "clip4clip" if name in HEADS else name
    options: dict[str, Any] = {"head": HEADS[name]} if name in HEADS else {}
    if name == "eaglenet":
        options["edge_weights"] = "activated"  # As in all recipes except variant reading=literal.
    spec = METHODS[method]
    fields = getattr(spec.config_class, "__dataclass_fields__", {})
    options |= {
        key: value for key, value in {"dim": dim, "num_frames": FRAMES}.items() if key in fields
    }
    torch.manual_seed(0)
    encoder = ClipEncoder(narrow_tower(dim))
    return spec.build(spec.config_class(**options), encoder).to(device).eval()


def make_clips(count: int, size: int, generator: torch.Generator) -> Clips:
    frames = torch.randint(
        0, 256, (count, FRAMES, 3, size, size), generator=generator, dtype=torch.uint8
    )
    return Clips(frames, torch.ones(count, FRAMES, dtype=torch.bool), torch.zeros(count, FRAMES))


def make_tokens(count: int, vocabulary: int, generator: torch.Generator) -> Tokens:
    ids = torch.randint(1, vocabulary - 2, (count, WORDS), generator=generator)
    lengths = torch.randint(8, WORDS + 1, (count, 1), generator=generator)
    mask = torch.arange(WORDS)[None] < lengths
    return Tokens((ids.scatter(1, lengths - 1, vocabulary - 1)) * mask, mask)


@torch.no_grad()
def encode(method: Method, count: int, device: str) -> tuple[TextFeatures, VideoFeatures]:
    """Encode ``count`` texts and videos, batch by batch."""
    generator = torch.Generator().manual_seed(1)
    vision, batch = 56, 100
    texts, videos = [], []
    for start in range(0, count, batch):
        size = min(batch, count - start)
        texts.append(method.encode_text(make_tokens(size, 500, generator).to(device)))
        videos.append(method.encode_video(make_clips(size, vision, generator).to(device)))
    return TextFeatures.concatenate(texts), VideoFeatures.concatenate(videos)


def measure_scores(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the row of a method: seconds and memory for the whole matrix."""
    device, count, dim = options.device, options.count, options.dim
    row: dict[str, Any] = {"method": name, "class": cost_class(name)}
    paper = PAPER_NAMES.get(name)
    row["paper_test_seconds"] = paper_tables()["time"].value(paper, "test") if paper else None
    try:
        method = build(name, dim, device)
        text, video = encode(method, count, device)
    except EagleNetError as error:
        return row | {"cannot_run": str(error)}
    on_gpu = torch.device(device).type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if on_gpu else 0
    timing = time_calls(
        lambda: score_all(method, text, video, precision=options.precision),
        device,
        repeats=options.repeats,
        warmup=1,
    )
    peak = torch.cuda.max_memory_allocated() - before if on_gpu else None
    return row | {
        "seconds": timing.median,
        "best_seconds": timing.best,
        "peak_bytes": peak,
        "pair_vector_bytes": 4 * count * count * dim,
        "tile": list(method.score_tile),
        "cannot_run": None,
    }


def scores_part(options: argparse.Namespace) -> list[dict[str, Any]]:
    names = options.methods or ["eaglenet", *COMPARED, *HEADS]
    print(
        f"{options.count:,} x {options.count:,} scores, width {options.dim}; one vector per pair "
        f"would take {4 * options.count**2 * options.dim / 2**30:.2f} GiB"
    )
    print(f"{'method':22} {'class':17} {'seconds':>9} {'peak MiB':>9} {'paper, all of test':>18}")
    rows = []
    for name in names:
        row = measure_scores(name, options)
        rows.append(row)
        if row["cannot_run"]:
            print(f"{method_title(name):22} {row['class']:17} cannot run: {row['cannot_run'][:60]}")
            continue
        peak = "-" if row["peak_bytes"] is None else f"{row['peak_bytes'] / 2**20:,.0f}"
        paper = "-" if row["paper_test_seconds"] is None else f"{row['paper_test_seconds']:.1f}"
        title = method_title(name)
        print(f"{title:22} {row['class']:17} {row['seconds']:9.3f} {peak:>9} {paper:>18}")
    return rows


def tempme_part(options: argparse.Namespace) -> list[dict[str, Any]]:
    print(f"\nTempMe against the plain tower. {CLAIM}")
    print(
        f"{'tower':9} {'side':8} {'output tokens':>13} {'GFLOP/video':>11} {'frames/s':>9} "
        f"{'step s':>8} {'step GiB':>8} {'trained M':>9}"
    )
    rows = []
    for tower in options.towers:
        for side in ("clip4clip", "tempme"):
            row = measure_tower(tower, side, options)
            rows.append(row)
            memory = "-" if row["step_bytes"] is None else f"{row['step_bytes'] / 2**30:.1f}"
            print(
                f"{row['tower']:9} {'plain' if side == 'clip4clip' else side:8} "
                f"{row['tokens'][-1]:13,} {row['operations_per_video'] / 1e9:11.1f} "
                f"{row['frames_per_second']:9,.0f} {row['step_seconds']:8.3f} {memory:>8} "
                f"{row['trained_parameters'] / 1e6:9.2f}"
            )
    return rows


def measure_tower(tower: str, side: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure encoding and a training step of a method on a real tower with random weights."""
    config = CLIP_SHAPES[TOWERS[tower]]
    if options.quick:
        vision = VisionConfig(224, config.vision.patch_size, 32, 12, 1, 32)
        config = ClipConfig(dim=32, vision=vision, text=TextConfig(500, 77, 32, 2, 1, 32))
    torch.manual_seed(0)
    spec = METHODS[side]
    device = options.device
    kind = torch.device(device).type
    method = spec.build(spec.config_class(num_frames=FRAMES), ClipEncoder(config)).to(device)
    generator = torch.Generator().manual_seed(1)
    videos = make_clips(options.pairs, 224, generator).to(device)
    texts = make_tokens(options.pairs, config.text.vocabulary_size, generator).to(device)
    half = torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")

    def encode_videos() -> Any:
        with torch.no_grad(), half:
            return method.encode_video(videos)

    def step() -> None:
        method.zero_grad(set_to_none=True)
        with half:
            text, video = method.encode_text(texts), method.encode_video(videos)
        text, video = text.to(device, torch.float32), video.to(device, torch.float32)
        right = torch.eye(options.pairs, dtype=torch.bool, device=device)
        method.losses(text, video, right).total.backward()

    method.eval()
    encoding = time_calls(encode_videos, device, repeats=options.repeats, warmup=2)
    with torch.no_grad():
        work = operations(lambda: method.encode_video(videos[:1]))
    if side == "tempme":
        with torch.no_grad():
            tokens = method.merging(method.encoder.vision, videos.frames[:1])[1]  # type: ignore[operator,union-attr]
    else:
        tokens = [FRAMES * config.vision.num_tokens] * config.vision.layers
    method.train()
    if kind == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    training = time_calls(step, device, repeats=options.repeats, warmup=2)
    num_trained = sum(value.numel() for value in method.parameters() if value.requires_grad)
    return {
        "tower": TOWERS[tower],
        "side": side,
        "pairs": options.pairs,
        "tokens": tokens,
        "operations_per_video": work,
        "frames_per_second": options.pairs * FRAMES / encoding.median,
        "step_seconds": training.median,
        "step_bytes": torch.cuda.max_memory_allocated() if kind == "cuda" else None,
        "trained_parameters": num_trained,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--parts", nargs="+", choices=["scores", "tempme"])
    parser.add_argument(
        "--methods", nargs="+", help="methods of the scores (default: those on CLIP)"
    )
    parser.add_argument("--towers", nargs="+", choices=list(TOWERS), default=list(TOWERS))
    parser.add_argument(
        "--precision", default="fp32", choices=["fp32", "bf16"], help="precision of scoring"
    )
    parser.add_argument("--count", type=int, help="texts and videos")
    parser.add_argument("--dim", type=int, help="joint width")
    parser.add_argument("--pairs", type=int, help="pairs per step")
    parser.add_argument("--repeats", type=int, help="number of calls to time")
    parser.add_argument("--quick", action="store_true", help="small enough for a CPU")
    parser.add_argument("--name", help="name of the result file, without its ending")
    parser.add_argument("--output", type=Path, help="folder for the result (default: results/)")
    options = parser.parse_args()
    small = options.quick or options.device == "cpu"
    options.parts = options.parts or ["scores", "tempme"]
    options.count = options.count or (60 if small else 1000)
    options.dim = options.dim or (64 if options.quick else 512)
    options.pairs = options.pairs or (2 if small else 64)
    options.repeats = options.repeats or (1 if small else 5)
    where = environment()
    print(f"{where['gpu'] or where['cpu']}, torch {torch.__version__}, commit {where['commit']}")
    result: dict[str, Any] = {
        "settings": {
            key: getattr(options, key)
            for key in ("count", "dim", "pairs", "repeats", "quick", "precision")
        },
        "claim": CLAIM,
    }
    if "scores" in options.parts:
        result["scores"] = scores_part(options)
    if "tempme" in options.parts:
        result["tempme"] = tempme_part(options)
    name = options.name or ("methods-quick" if options.quick else "methods")
    print(f"written to {save_result(name, result, options.output, device=options.device)}")


if __name__ == "__main__":
    main()
