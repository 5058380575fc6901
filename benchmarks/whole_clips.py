"""Overhead of the adapter for sentence-transformers: clips of VideoPrism-LvT B with and without it.

    python benchmarks/whole_clips.py             # random weights of the published size, 1 GB
    python benchmarks/whole_clips.py --small     # a tiny model, to measure only the overhead

Measured alternately: ``encode_video`` of the model that ``st:FOLDER`` opens, which makes the inputs
with the model's processor, and the model of transformers alone on inputs made before. A native
tower could save at most the difference. CPU seconds are those of all threads; they depend less on
other programs than the wall clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import eaglenet
from common import save_result
from eaglenet.core.types import Clips

sys.path.append(str(Path(__file__).parent.parent / "tests"))


def main() -> None:
    from st_models import make_videoprism

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--clips", type=int, default=1, help="clips per call")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_videoprism(Path(folder), is_full=not options.small)
        method = eaglenet.load(f"st:{folder}", device=options.device)
    spec = method.frame_spec
    shape = (options.clips, spec.num_frames, 3, spec.size, spec.size)
    frames = torch.randint(0, 256, shape, dtype=torch.uint8)
    mask = torch.ones(shape[:2], dtype=torch.bool)
    clips = Clips(frames, mask, torch.arange(spec.num_frames).expand(mask.shape) / 2)
    encoder: Any = method.encoder
    model, processor = encoder.model.transformers_model, encoder.model.processor
    inputs = processor(videos=list(frames), return_tensors="pt", do_sample_frames=False)
    inputs = inputs.to(options.device)

    @torch.inference_mode()
    def model_alone() -> Any:
        return model.get_video_features(**inputs)

    sides: dict[str, Callable[[], Any]] = {
        "st:": lambda: method.encode_video(clips),
        "model alone": model_alone,
    }
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(options.rounds + 1):  # The first round is dropped.
        for name, call in sides.items():
            begin = time.perf_counter(), time.process_time()
            call()
            if options.device != "cpu":
                torch.cuda.synchronize()
            end = time.perf_counter(), time.process_time()
            seconds[name].append((end[0] - begin[0], end[1] - begin[1]))
    results = {
        name: {
            "seconds": statistics.median(wall for wall, _ in rounds[1:]),
            "cpu_seconds": statistics.median(cpu for _, cpu in rounds[1:]),
        }
        for name, rounds in seconds.items()
    }
    print(results)
    payload = {"model": "small" if options.small else "VideoPrism-LvT B", "clips": options.clips}
    name_of_result = "whole-clips-small" if options.small else "whole-clips"
    save_result(name_of_result, {**payload, "results": results}, device=options.device)


if __name__ == "__main__":
    main()
