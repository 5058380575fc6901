"""Rebuilds the checkpoint and the inputs behind the reference numbers in ``tests/golden``.

The numbers were computed by the paper authors' released code on a small checkpoint whose every
weight follows one formula, so the files hold results only. Absolute tolerance: 2e-5 in float32.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "golden"
GOLDEN_NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.npz")))

TOLERANCE = 2e-5
NUM_TEXTS, NUM_VIDEOS, NUM_PAIRS, NUM_CANDIDATES, DIM, IMAGE = 5, 7, 5, 20, 512, 64
START, END, PAD = 998, 999, 0

NORMS = ("ln_1", "ln_2", "ln_pre", "ln_post", "ln_final", *(f"layer_norm{i}" for i in (1, 2, 3)))
CONSTANTS = {"loss_fct.bias": -12.93, "loss_fct.temp_prior": 4.77, "logit_scale": 4.6052}


def pseudo(index: int, shape: tuple[int, ...] | list[int], salt: int = 0) -> Tensor:
    """2 frac(43758.5453 sin(12.9898 n + 78.233 (index + 1000 salt))) - 1, n row-major, float32."""
    return torch.from_numpy(_pseudo_double(index, shape, salt)).float()


def _weight(name: str, shape: list[int], index: int, salt: int) -> Tensor:
    """One weight, by its place in the sorted list of names and by its name."""
    for ending, constant in CONSTANTS.items():
        if name.endswith(ending):
            return torch.full(shape, constant)
    if name.startswith("ebm.replay_buffer"):
        return torch.zeros(shape)
    # float64 until the last step, as the reference was built.
    x = _pseudo_double(index, shape, salt)
    parts = name.split(".")
    if parts[-1] == "weight" and parts[-2] in NORMS:
        value = 1 + 0.1 * x
    elif name.endswith("bias"):
        value = 0.1 * x
    elif "embedding" in name or name == "frame_pe":
        value = 0.5 * x
    else:
        is_input_first = len(shape) == 1 or name.endswith((".proj", "text_projection"))
        fan_in = shape[0] if is_input_first else math.prod(shape[1:])
        value = x * math.sqrt(3 / fan_in) * (3 if name.startswith("gnn.") else 1)
    return torch.from_numpy(value).float()


def _pseudo_double(
    index: int, shape: tuple[int, ...] | list[int], salt: int
) -> np.ndarray[Any, Any]:
    n = np.arange(math.prod(shape), dtype=np.float64)
    x = np.sin(n * 12.9898 + (index + 1000 * salt) * 78.233) * 43758.5453
    return (2 * (x - np.floor(x)) - 1).reshape(shape)


def golden_options(name: str) -> dict[str, Any]:
    """salt, energy, pooling, graph, framepe, loss, frames."""
    options: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())["options"]
    return options


def golden_weights(name: str) -> dict[str, Tensor]:
    """The whole released checkpoint, by the released code's parameter names."""
    return dict(_golden_weights(name))


@cache
def _golden_weights(name: str) -> dict[str, Tensor]:
    content = json.loads((FOLDER / f"{name}.json").read_text())
    salt = content["options"]["salt"]
    return {
        weight: _weight(weight, shape, index, salt)
        for index, (weight, shape) in enumerate(content["weights"])
    }


def load_golden(name: str) -> dict[str, Tensor]:
    """What the released code computed; see the names in the file."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return {key: torch.from_numpy(np.array(arrays[key])) for key in arrays.files}


@dataclass(frozen=True)
class GoldenInputs:
    """Everything random or external, fixed."""

    token_ids: Tensor  # [texts, words]
    pixels: Tensor  # [videos, frames, 3, height, width], already normalised
    candidate_noise: Tensor  # [candidates, texts * videos, dim], pair = text * videos + video
    train_candidate_noise: Tensor  # [candidates, pairs * pairs, dim]
    chain_frames: Tensor  # [pairs, frames, dim], start of the chain, in (-1, 1)
    chain_text: Tensor  # [pairs, dim], start of the chain, in (-1, 1)


def golden_inputs(name: str) -> GoldenInputs:
    options = golden_options(name)
    salt, frames = options["salt"], options["frames"]

    def unit(index: int, shape: list[int]) -> Tensor:
        return torch.from_numpy((_pseudo_double(index, shape, salt) + 1) / 2).float()

    return GoldenInputs(
        token_ids=load_golden(name)["token_ids"],
        pixels=pseudo(9100, [NUM_VIDEOS, frames, 3, IMAGE, IMAGE], salt),
        candidate_noise=unit(9200, [NUM_CANDIDATES, NUM_TEXTS * NUM_VIDEOS, DIM]),
        train_candidate_noise=unit(9300, [NUM_CANDIDATES, NUM_PAIRS**2, DIM]),
        chain_frames=2 * unit(9400, [NUM_PAIRS, frames, DIM]) - 1,
        chain_text=2 * unit(9500, [NUM_PAIRS, DIM]) - 1,
    )
