"""Score matrices and correspondences from files, whoever made them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from eaglenet import foreign
from eaglenet.errors import UsageError


def read_scores(path: Path) -> Float[Tensor, "texts videos"]:
    """A ``.npy`` of shape ``[texts, videos]``."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file: expected a .npy of scores [texts, videos]")
    array = _load_array(path)
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        shape = getattr(array, "shape", "several arrays")
        raise UsageError(f"{path} has shape {shape}: expected two axes, [texts, videos]")
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise UsageError(f"{path} holds {array.dtype}: expected real numbers")
    if 0 in array.shape:
        raise UsageError(f"{path} has shape {array.shape}: expected at least one text and video")
    # Integers of 32 bits and more do not fit float32, and would make ties that are not there.
    exact = array if array.dtype in (np.float16, np.float32) else array.astype(np.float64)
    return torch.from_numpy(np.ascontiguousarray(exact, dtype=exact.dtype.newbyteorder("=")))


def read_video_of_text(path: Path, num_texts: int) -> Int[Tensor, "texts"]:
    """Which video each text belongs to: ``.npy``, a JSON list, or one number a line."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file: expected one video number for each text")
    try:
        if path.suffix == ".npy":
            values = _load_array(path)
        elif path.suffix == ".json":
            values = np.array(foreign.read_json(path, foreign.MAX_ANNOTATIONS))
        else:
            words = foreign.read_text(path, foreign.MAX_ANNOTATIONS).split()
            values = np.array([int(word) for word in words])
    except (ValueError, EOFError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not np.issubdtype(values.dtype, np.integer) or values.shape != (num_texts,):
        raise UsageError(
            f"{path} holds {values.dtype} of shape {values.shape}: expected {num_texts} whole "
            "numbers, the video of each text in the order of the matrix, counted from 0"
        )
    return torch.from_numpy(values.astype(np.int64))


def _load_array(path: Path) -> Any:
    try:
        return foreign.read_array(path)
    except (ValueError, EOFError) as error:
        # NumPy's own words advise to load a foreign file unsafely.
        raise UsageError(
            f"{path} cannot be read: not an array of numbers as numpy.save writes it (.npy)"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def default_video_of_text(scores: Float[Tensor, "texts videos"]) -> Int[Tensor, "texts"]:
    """Text i belongs to video i: only a square matrix may be read so."""
    num_texts, num_videos = scores.shape
    if num_texts != num_videos:
        raise UsageError(
            f"the matrix is {num_texts} texts x {num_videos} videos, so text i may not belong to "
            "video i: say which video each text belongs to with --video-of-text FILE"
        )
    return torch.arange(num_texts)
