"""Vectors of the frames of a folder (`eaglenet data frames`), by `small` or another compact model.

    python benchmarks/frame_vectors.py FOLDER CACHE [--runtime int8] [--items 10000]

Encoding takes most of the time of the benchmarks that use these vectors. They are stored in CACHE,
one file per batch, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from eaglenet.models.light_model import BATCH_FRAMES, LightModel, mean_of_frames, unit
from eaglenet.research.data.frame_folder import FrameFolder, FrameItem, decode_jpeg, sample_frames

Runtime = Literal["torch", "fp32", "int8"]
"""``torch`` in fp32, and onnxruntime in fp32 and int8."""
RUNTIMES: tuple[Runtime, ...] = get_args(Runtime)
BATCH_ITEMS = 100


@dataclass(frozen=True)
class Vectors:
    """Items of a folder with the vectors of their frames.

    frames: not normalised, ``[items, frames, dim]``; mask: False for padding.
    """

    items: list[FrameItem]
    frames: NDArray[np.float32]
    mask: NDArray[np.bool_]

    @property
    def clips(self) -> NDArray[np.float32]:
        """Unit vector of the mean frame of each item."""
        return mean_of_frames(self.frames, self.mask)

    @property
    def texts(self) -> list[tuple[str, int]]:
        """Captions by people, each with the index of its item."""
        return [
            (text, number)
            for number, item in enumerate(self.items)
            for text in item.captions.get("people", ())
        ]


def encode_folder(
    root: Path, cache: Path, model: str, runtime: Runtime, limit: int | None = None
) -> Vectors:
    """Encode the first ``limit`` items of a folder, each with as many frames as the model reads."""
    light = LightModel.open(model)
    size, num_frames = light.frame_spec.size, light.frame_spec.num_frames
    folder = FrameFolder.open(root)
    items = list(folder.items[:limit])
    parts = cache / f"{root.name}-{runtime}-{light.identity[:8]}"
    parts.mkdir(parents=True, exist_ok=True)
    tower: Callable[[NDArray[np.uint8]], NDArray[np.float32]] | None = None
    jpegs = _jpegs_of_items(folder)
    vectors = []
    for start in range(0, len(items), BATCH_ITEMS):
        batch = items[start : start + BATCH_ITEMS]
        contents = list(itertools.islice(jpegs, len(batch)))
        path = parts / f"{start:06d}-{len(batch)}.npy"
        if not path.exists():
            tower = tower or open_tower(light, model, runtime)
            pixels = [
                decode_jpeg(content[number], size)
                for content in contents
                for number in sample_frames(len(content), num_frames)
            ]
            frames = np.ascontiguousarray(np.stack(pixels).transpose(0, 3, 1, 2))
            steps = range(0, len(frames), BATCH_FRAMES)
            results = [tower(frames[step : step + BATCH_FRAMES]) for step in steps]
            partial = path.with_suffix(".partial.npy")
            np.save(partial, np.concatenate(results))
            partial.replace(path)
            print(f"{root.name} {runtime}: {start + len(batch)} of {len(items)}", flush=True)
        vectors.append(np.load(path))
    counts = [min(item.frames, num_frames) for item in items]
    mask = np.arange(num_frames) < np.array(counts)[:, None]
    frames = np.zeros((*mask.shape, light.dim), np.float32)
    frames[mask] = np.concatenate(vectors)
    return Vectors(items, frames, mask)


def open_tower(
    light: LightModel, model: str, runtime: Runtime
) -> Callable[[NDArray[np.uint8]], NDArray[np.float32]]:
    """Return a function from uint8 frames ``[frames, 3, size, size]`` to ``[frames, dim]``."""
    if runtime != "torch":
        vision: Callable[[NDArray[np.uint8]], NDArray[np.float32]] = light.vision(runtime)
        return vision
    import torch

    from eaglenet.models.folder import load

    encoder = load(model).eval().encoder

    @torch.inference_mode()
    def encode(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        result: NDArray[np.float32] = encoder.vision(torch.from_numpy(frames)).numpy()
        return result.reshape(len(frames), -1)

    return encode


def encode_texts(model: str, texts: list[str], cache: Path) -> NDArray[np.float32]:
    """Return the unit vectors of texts."""
    light = LightModel.open(model)
    digest = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    path = cache / f"texts-{digest[:8]}-{light.identity[:8]}.npy"
    if not path.exists():
        steps = range(0, len(texts), 64)
        parts = [light.encode_texts(texts[step : step + 64]) for step in steps]
        np.save(path, np.concatenate(parts))
    return unit(np.load(path))


def _jpegs_of_items(folder: FrameFolder) -> Iterator[list[bytes]]:
    """Yield the frames of each item, in the order of the index."""
    for _, group in itertools.groupby(folder.read_jpegs(), lambda part: part[0].rpartition("/")[0]):
        yield [content for _, content in group]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--model", default="small")
    parser.add_argument("--runtime", default="int8", choices=RUNTIMES)
    parser.add_argument("--items", type=int, default=None)
    options = parser.parse_args()
    encode_folder(options.folder, options.cache, options.model, options.runtime, options.items)


if __name__ == "__main__":
    main()
