"""Post-processing of scores that uses other queries. Never a default; always labelled.

All of it assumes that the other queries (or training queries) are known, which they are not when a
search engine answers one query. Numbers with and without it are not comparable.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError


def dual_softmax(
    scores: Float[Tensor, "texts videos"], *, temperature: float = 100.0
) -> Float[Tensor, "texts videos"]:
    """Apply CAMoE's dual softmax: ``s'_tv = s_tv * softmax_t(temperature * s_tv)``.

    The prior is over the *texts*, so it needs the whole query set. This is the text-to-video form;
    apply it to the transpose for the other direction.
    """
    return scores * F.softmax(temperature * scores, dim=0)


def dual_softmax_both(
    scores: Float[Tensor, "texts videos"], *, temperature: float = 100.0
) -> tuple[Float[Tensor, "texts videos"], Float[Tensor, "texts videos"]]:
    """Scores for text-to-video and for video-to-text, each with its own prior."""
    other = dual_softmax(scores.T, temperature=temperature).T
    return dual_softmax(scores, temperature=temperature), other


def sinkhorn_norm(
    scores: Float[Tensor, "texts videos"],
    bank: Float[Tensor, "bank bank_videos"],
    *,
    temperature: float = 100.0,
    iterations: int = 4,
) -> Float[Tensor, "texts videos"]:
    """Apply UCoFiA's SK-norm: a bias per video that spreads training queries evenly over videos.

    ``exp(b bank)`` is normalised over rows and columns in turn; the logarithm of the columns'
    scaling, a log-softmax over the videos, is added to ``b s``. For text-to-video; the other
    direction needs training videos against these texts.
    """
    if bank.shape[1] != scores.shape[1]:
        raise UsageError(
            f"the training texts are scored against {bank.shape[1]} videos but the matrix has "
            f"{scores.shape[1]}: score them against the same videos, in the same order"
        )
    logits = temperature * bank
    columns = torch.zeros(bank.shape[1], dtype=bank.dtype, device=bank.device)
    for _ in range(iterations):
        rows = -torch.logsumexp(logits + columns[None, :], dim=1)
        columns = -torch.logsumexp(logits + rows[:, None], dim=0)
    return temperature * scores + columns.log_softmax(dim=0)[None, :]


def querybank_norm(
    scores: Float[Tensor, "texts videos"],
    bank: Float[Tensor, "bank bank_videos"],
    *,
    temperature: float = 20.0,
    top_k: int = 1,
) -> Float[Tensor, "texts videos"]:
    """Apply QB-Norm with the dynamic inverted softmax, over a bank of training queries.

    ``s'_tv = exp(b s_tv) / sum_q exp(b bank_qv)`` for the texts whose best video is among the
    ``top_k`` videos of some bank query (a hub); the other texts keep their order.

    The ratio is taken as a logarithm, ``b s_tv - logsumexp_q(b bank_qv)``: the same order within a
    text, without overflow. Rows that are not normalised stay as they are, so scores are comparable
    inside a row only: use it for text-to-video.
    """
    if bank.shape[1] != scores.shape[1]:
        raise UsageError(
            f"the query bank scores {bank.shape[1]} videos but the matrix has {scores.shape[1]}: "
            "score the training texts against the same videos, in the same order"
        )
    if not 1 <= top_k <= scores.shape[1]:
        raise UsageError(f"top_k is {top_k}; expected 1 to {scores.shape[1]}, the number of videos")
    hubs = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
    hubs[bank.topk(top_k, dim=1).indices.flatten()] = True
    normalised = temperature * scores - torch.logsumexp(temperature * bank, dim=0)[None, :]
    return torch.where(hubs[scores.argmax(dim=1)][:, None], normalised, scores)


def read_scores(path: Path) -> Float[Tensor, "texts videos"]:
    """Read a ``.npy`` of shape ``[texts, videos]``."""
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
