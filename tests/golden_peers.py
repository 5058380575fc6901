"""Numbers of the compared methods' official code: weights, inputs, outputs, losses, gradients.

``EAGLENET_GOLDEN_PEERS`` names another folder of such files, made with other options.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FOLDER = Path(os.environ.get("EAGLENET_GOLDEN_PEERS", Path(__file__).parent / "golden" / "peers"))
FILES = sorted(path.stem for path in FOLDER.glob("*.npz"))


@dataclass(frozen=True)
class Golden:
    """One file: the method's official code on one draw of weights and inputs."""

    name: str
    method: str
    options: dict[str, Any]
    arrays: dict[str, Tensor]

    def below(self, prefix: str) -> dict[str, Tensor]:
        """Arrays whose names start with ``prefix/``, without it."""
        start = f"{prefix}/"
        return {n.removeprefix(start): a for n, a in self.arrays.items() if n.startswith(start)}

    @property
    def weights(self) -> dict[str, Tensor]:
        return self.below("weights")

    @property
    def dtype(self) -> torch.dtype:
        """Precision in which the official code ran."""
        return next(iter(self.weights.values())).dtype

    @property
    def cases(self) -> list[str]:
        names = (name for name in self.arrays if "/inputs/" in name and "/gradients/" not in name)
        return sorted({name.split("/inputs/")[0] for name in names})


@cache
def load_peer(name: str) -> Golden:
    with np.load(FOLDER / f"{name}.npz") as stored:
        options = json.loads(str(stored["options"]))
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files if key != "options"}
    return Golden(name, name.split("-")[0], options, arrays)


def peer_cases() -> list[tuple[str, str]]:
    """Every file and case."""
    return [(name, case) for name in FILES for case in load_peer(name).cases]
