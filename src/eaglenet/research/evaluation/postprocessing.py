"""Post-processing of scores that uses other queries. Never a default; always labelled.

All of it assumes that the other queries (or training queries) are known, which they are not when a
search engine answers one query. Numbers with and without it are not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError

Direction = Literal["text_to_video", "video_to_text"]


def dual_softmax(
    scores: Float[Tensor, "texts videos"], *, temperature: float = 100.0
) -> Float[Tensor, "texts videos"]:
    """Apply CAMoE's dual softmax: ``s'_tv = s_tv * softmax_t(temperature * s_tv)``.

    The prior is over the *texts*, so it needs the whole query set. This is the text-to-video form;
    apply it to the transpose for the other direction.
    """
    return scores * F.softmax(temperature * scores, dim=0)


def sinkhorn_offsets(
    bank: Float[Tensor, "bank items"], *, iterations: int = 4
) -> Float[Tensor, "items"]:
    """UCoFiA's SK-norm: an offset of each item, so that training queries spread evenly over them.

    ``exp(bank)`` is normalised over rows and columns in turn, starting with the columns; the offset
    is the logarithm of the columns' scaling, a log-softmax over the items. ``bank`` holds logits.
    """
    columns = -torch.logsumexp(bank, dim=0)
    for _ in range(iterations):
        rows = -torch.logsumexp(bank + columns[None, :], dim=1)
        columns = -torch.logsumexp(bank + rows[:, None], dim=0)
    return columns.log_softmax(dim=0)


def sinkhorn_norm(
    scores: Float[Tensor, "texts videos"],
    bank: Float[Tensor, "bank_texts bank_videos"],
    *,
    direction: Direction = "text_to_video",
    temperature: float = 100.0,
    iterations: int = 4,
) -> Float[Tensor, "texts videos"]:
    """Scores times ``temperature`` with the offsets of :func:`sinkhorn_offsets` added.

    For ``text_to_video`` the bank scores training texts against these videos, each of which gets an
    offset; for ``video_to_text`` it scores these texts against training videos.
    """
    axis = 1 if direction == "text_to_video" else 0
    if bank.shape[axis] != scores.shape[axis]:
        items, others = ("videos", "texts") if axis else ("texts", "videos")
        raise UsageError(
            f"the training {others} are scored against {bank.shape[axis]} {items} but the matrix "
            f"has {scores.shape[axis]}: score them against the same {items}, in the same order"
        )
    logits = temperature * (bank if axis else bank.T)
    offsets = sinkhorn_offsets(logits, iterations=iterations)
    return temperature * scores + (offsets[None, :] if axis else offsets[:, None])


def sinkhorn_levels(
    levels: Sequence[Float[Tensor, "texts videos"]],
    banks: Sequence[Float[Tensor, "bank_texts bank_videos"]],
    *,
    direction: Direction = "text_to_video",
    iterations: int = 4,
) -> Float[Tensor, "texts videos"]:
    """Mean of the levels' logits, each normalised by its own bank, as UCoFiA's evaluation does."""
    if len(levels) != len(banks):
        raise UsageError(f"{len(levels)} levels of scores and {len(banks)} banks; give one of each")
    normalised = [
        sinkhorn_norm(scores, bank, direction=direction, temperature=1.0, iterations=iterations)
        for scores, bank in zip(levels, banks, strict=True)
    ]
    return torch.stack(normalised).mean(dim=0)


def querybank_norm(
    scores: Float[Tensor, "texts videos"],
    bank: Float[Tensor, "bank bank_videos"],
    *,
    temperature: float = 20.0,
) -> Float[Tensor, "texts videos"]:
    """Apply QB-Norm with the dynamic inverted softmax, over a bank of training queries.

    ``s'_tv = exp(b s_tv) / sum_q exp(b bank_qv)`` for the texts whose best video is the best of
    some bank query (a hub); the other texts keep their order.

    The ratio is taken as a logarithm, ``b s_tv - logsumexp_q(b bank_qv)``: the same order within a
    text, without overflow. Rows that are not normalised stay as they are, so scores are comparable
    inside a row only: use it for text-to-video.
    """
    if bank.shape[1] != scores.shape[1]:
        raise UsageError(
            f"the query bank scores {bank.shape[1]} videos but the matrix has {scores.shape[1]}: "
            "score the training texts against the same videos, in the same order"
        )
    hubs = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
    hubs[bank.argmax(dim=1)] = True
    normalised = temperature * scores - torch.logsumexp(temperature * bank, dim=0)[None, :]
    return torch.where(hubs[scores.argmax(dim=1)][:, None], normalised, scores)


def read_scores(path: Path) -> Float[Tensor, "texts videos"]:
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
    """Read the video of each text: ``.npy``, a JSON list, or one number per line."""
    if not path.is_file():
        raise UsageError(f"{path} is not a file: expected one video number per text")
    try:
        if path.suffix == ".npy":
            values = _load_array(path)
        elif path.suffix == ".json":
            values = np.array(untrusted.read_json(path, untrusted.MAX_ANNOTATIONS))
        else:
            numbers = untrusted.read_text(path, untrusted.MAX_ANNOTATIONS).split()
            values = np.array([int(number) for number in numbers])
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
        return untrusted.read_array(path)
    except (ValueError, EOFError) as error:
        # NumPy's own message advises loading untrusted files unsafely.
        raise UsageError(
            f"{path} cannot be read: not an array of numbers as numpy.save writes it (.npy)"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def default_video_of_text(scores: Float[Tensor, "texts videos"]) -> Int[Tensor, "texts"]:
    """Text i belongs to video i; refuses a matrix that is not square."""
    num_texts, num_videos = scores.shape
    if num_texts != num_videos:
        raise UsageError(
            f"the matrix is {num_texts} texts x {num_videos} videos, so text i may not belong to "
            "video i: name the video of each text with --video-of-text FILE"
        )
    return torch.arange(num_texts)
