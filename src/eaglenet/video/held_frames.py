"""What decoded frames are held in: arrays, which a process that only decodes can make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.video.pixels import Pixels

if TYPE_CHECKING:
    from torch import Tensor


class HeldFrames:
    """Frames held as arrays and seen as tensors of the same memory.

    A process that only decodes does not import torch.
    """

    pixels: Pixels
    is_real: NDArray[np.bool_]
    times: NDArray[np.float32]

    @property
    def frames(self) -> Tensor:
        return _as_tensor(self.pixels)

    @property
    def mask(self) -> Tensor:
        return _as_tensor(self.is_real)

    @property
    def seconds(self) -> Tensor:
        return _as_tensor(self.times)


def _as_tensor(array: NDArray[Any]) -> Tensor:
    import torch

    return torch.from_numpy(array)
