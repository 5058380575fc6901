"""Post-processing of scores that uses other queries; never applied by default, always labelled.

It needs all test queries, or training queries, which a search engine does not have when it answers
a single query. Numbers with and without it are not comparable.
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
from eaglenet.layers.hubness import soft_maximum
from eaglenet.store.hubness import TEMPERATURE

Direction = Literal["text_to_video", "video_to_text"]


def dual_softmax(
    scores: Float[Tensor, "texts videos"], *, temperature: float = 100.0
) -> Float[Tensor, "texts videos"]:
    """Apply CAMoE's dual softmax: ``s'_tv = s_tv * softmax_t(temperature * s_tv)``.

    The softmax is over the texts, so it needs all queries. This form is for text-to-video; pass the
    transpose for the other direction.
    """
    return scores * F.softmax(temperature * scores, dim=0)


def sinkhorn_offsets(
    bank: Float[Tensor, "bank items"], *, iterations: int = 4
) -> Float[Tensor, "items"]:
    """Compute offsets (UCoFiA's SK-norm) that spread training queries evenly over the items.

    ``exp(bank)`` is normalised over columns and rows in turn, starting with the columns. The
    offsets are the log-softmax of the logarithm of the columns' scaling. ``bank`` contains logits.
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
    """Multiply scores by ``temperature`` and add the offsets of :func:`sinkhorn_offsets`.

    ``bank``: for ``text_to_video``, scores of training texts with these videos, each of which gets
    an offset; for ``video_to_text``, scores of these texts with training videos.
    """
    axis = 1 if direction == "text_to_video" else 0
    if bank.shape[axis] != scores.shape[axis]:
        items, queries = ("videos", "texts") if axis else ("texts", "videos")
        raise UsageError(
            f"the training {queries} are scored against {bank.shape[axis]} {items} but the matrix "
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
    """Average the logits of all levels, each normalised by its bank, as UCoFiA's authors do."""
    if len(levels) != len(banks):
        raise UsageError(f"{len(levels)} levels of scores, but {len(banks)} banks")
    normalised_scores = [
        sinkhorn_norm(scores, bank, direction=direction, temperature=1.0, iterations=iterations)
        for scores, bank in zip(levels, banks, strict=True)
    ]
    return torch.stack(normalised_scores).mean(dim=0)


def querybank_norm(
    scores: Float[Tensor, "texts videos"],
    bank: Float[Tensor, "bank bank_videos"],
    *,
    temperature: float = 20.0,
) -> Float[Tensor, "texts videos"]:
    """Apply QB-Norm (dynamic inverted softmax) with a bank of training queries.

    ``s'_tv = exp(b s_tv) / sum_q exp(b bank_qv)`` for texts whose best video is the best of a bank
    query (a hub); the scores of other texts do not change. Computed as a logarithm,
    ``b s_tv - logsumexp_q(b bank_qv)``, which has the same order within a text and cannot overflow.
    Scores are comparable only within a row: use it for text-to-video.
    """
    if bank.shape[1] != scores.shape[1]:
        raise UsageError(
            f"the query bank scores {bank.shape[1]} videos but the matrix has {scores.shape[1]}: "
            "score the training texts against the same videos, in the same order"
        )
    hubs = torch.zeros(scores.shape[1], dtype=torch.bool, device=scores.device)
    hubs[bank.argmax(dim=1)] = True
    normalised_scores = temperature * scores - torch.logsumexp(temperature * bank, dim=0)[None, :]
    return torch.where(hubs[scores.argmax(dim=1)][:, None], normalised_scores, scores)


def read_scores(path: Path) -> Float[Tensor, "texts videos"]:
    if not path.is_file():
        raise UsageError(f"{path} is not a file: expected a .npy of scores [texts, videos]")
    array = _load_array(path)
    if not isinstance(array, np.ndarray) or array.ndim != 2:
        shape = getattr(array, "shape", "several arrays")
        raise UsageError(f"{path} has shape {shape}: expected two axes, [texts, videos]")
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise UsageError(f"{path} contains {array.dtype}: expected real numbers")
    if 0 in array.shape:
        raise UsageError(f"{path} has shape {array.shape}: expected at least one text and video")
    # Large integers are not exact in float32, which would create ties.
    array = array if array.dtype in (np.float16, np.float32) else array.astype(np.float64)
    return torch.from_numpy(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))


def read_video_of_text(path: Path, num_texts: int) -> Int[Tensor, "texts"]:
    """Read the video index of each text: ``.npy``, a JSON list, or one number per line."""
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
            f"{path} contains {values.dtype} of shape {values.shape}: expected {num_texts} whole "
            "numbers, the video of each text in the order of the matrix, counted from 0"
        )
    return torch.from_numpy(values.astype(np.int64))


def _load_array(path: Path) -> Any:
    try:
        return untrusted.read_array(path)
    except (ValueError, EOFError) as error:
        # NumPy's message would advise to load untrusted files with pickle.
        raise UsageError(
            f"{path} cannot be read: not an array of numbers as numpy.save writes it (.npy)"
        ) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def default_video_of_text(scores: Float[Tensor, "texts videos"]) -> Int[Tensor, "texts"]:
    """Return video i for text i; raise if the matrix is not square."""
    num_texts, num_videos = scores.shape
    if num_texts != num_videos:
        raise UsageError(
            f"the matrix has {num_texts} texts and {num_videos} videos, so text i need not belong "
            "to video i: add the video of each text with --video-of-text FILE"
        )
    return torch.arange(num_texts)


SUBJECTS = (
    "a man", "a woman", "a child", "two people", "a group of people", "a dog", "a cat", "a girl",
    "a boy", "a cartoon character", "a player", "a singer", "a chef", "a car", "an animal",
    "someone",
)  # fmt: skip
ACTIONS = (
    "is talking to the camera", "is cooking food", "is playing a game", "is singing a song",
    "is dancing", "is running", "is driving on a road", "is playing with a ball",
    "is showing how to make something", "is walking outside", "is swimming in water",
    "is fixing a machine", "is eating at a table", "is sitting in a room", "is using a computer",
    "is laughing on a stage",
)  # fmt: skip


def typical_texts() -> list[str]:
    """Return 256 typical queries: every subject with every action."""
    return [f"{subject} {action}" for subject in SUBJECTS for action in ACTIONS]


def hub_bias(bank: Float[Tensor, "bank videos"]) -> Float[Tensor, "videos"]:
    r"""Return the offset to add to the scores of each video; lower for hubs.

    .. math:: b_v = -\frac{1}{\beta} \log \frac{1}{Q} \sum_q \exp(\beta s_{qv})

    This is the inverted softmax of QB-Norm (Bogolin et al., CVPR 2022, eq. 2) as a logarithm. The
    offset of a video is the same for all texts, so it does not change the ranking of texts.
    """
    return -soft_maximum(bank.double(), TEMPERATURE)
