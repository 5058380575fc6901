r"""Confidence: calibrated probability that a hit shows what the query describes.

Scores of different queries cannot be compared: a good match of one query may have the score of a
bad match of another. The evidence for a hit is how far its score stands out among all clips:

.. math::
    \mathrm{logit}\, p_i = b + w_1 \log \frac{e^{\beta c_i}}{\sum_j e^{\beta c_j}}
        + w_2 (c_i - \max_{j \ne i} c_j) + w_3 c_i + w_4 \bar c + w_5 \log N

c are cosines minus hubness offsets, the sum is over the best clip of each file of the shortlist,
c-bar is the mean over a sample of all clips, and N is the number of clips searched. A sequence
(:mod:`eaglenet.search.sequences`) has the same evidence with weights of its own: c are the scores
of the best sequence of each file and c-bar the means of its steps, both summed over the steps, and
N is the number of files.

The weights are fitted per model on videos that it was not trained on, and are stored with it as
``confidence.json``. A model without that file has no confidences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core import untrusted
from eaglenet.core.errors import CheckpointError, cause_of
from eaglenet.core.files import write_json
from eaglenet.search.hit import Hit

FILE = "confidence.json"
MAX_RIVALS = 100
"""Files of the shortlist that a hit is compared with, as when the weights were fitted."""
MIN_CLIPS = 10
"""Minimum clips to search for hits to have a confidence: the smallest number measured. A single
unrelated clip would seem likely."""
SAMPLE_SIZE = 1024
"""Clips from which the mean score of a query is estimated; the error is about 0.001."""
MIN_LIKELY = 0.1
"""If the best hit has less confidence, no hit is likely to be right."""
FEATURES = ("bias", "share", "lead", "score", "mean", "size")


@dataclass(frozen=True)
class Calibration:
    """Weights of the evidence, for one model.

    identity: hash of the model that they were fitted for.
    hubness: description of the hubness bank that its offsets were computed with.
    scale: factor on scores in the softmax.
    weights: one per name of ``FEATURES``.
    measured: how the weights were fitted, for people: data, date, AUC, calibration error.
    sequences: weights for sequences; empty: sequences have no confidence.
    """

    identity: str
    hubness: str
    scale: float
    weights: Mapping[str, float]
    measured: Mapping[str, Any] = field(default_factory=dict)
    sequences: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for weights in (self.weights, self.sequences or self.weights):
            if set(weights) != set(FEATURES):
                raise ValueError(f"weights for {sorted(weights)}, expected {sorted(FEATURES)}")
        numbers = (self.scale, *self.weights.values(), *self.sequences.values())
        if not all(isinstance(number, int | float) for number in numbers):
            raise ValueError("weights are not numbers")
        if not all(map(math.isfinite, numbers)) or self.scale <= 0:
            raise ValueError(
                "expected a positive scale and finite weights, not "
                f"{self.scale}, {dict(self.weights)} and {dict(self.sequences)}"
            )

    def confidences(
        self,
        scores: NDArray[np.floating[Any]],
        *,
        mean: float,
        num_clips: int,
        files: Sequence[int] | NDArray[np.integer[Any]] | None = None,
    ) -> NDArray[np.float64]:
        """Return the probability that each clip of a shortlist is right.

        scores: cosines minus hubness offsets of the whole shortlist, in any order.
        mean: mean of such scores over a sample of the clips that were searched.
        num_clips: number of clips that were searched.
        files: id of the file of each clip; clips of one file are not rivals. None: all differ.
        """
        evidence = make_evidence(scores, self.scale, mean=mean, num_clips=num_clips, files=files)
        return _weigh(evidence, self.weights)

    def sequence_confidences(
        self, scores: NDArray[np.floating[Any]], *, mean: float, num_files: int
    ) -> NDArray[np.float64]:
        """Return the probability that each sequence is right.

        scores: score of the best sequence of each file, summed over its steps.
        mean: mean score over a sample of clips, summed over the steps.
        """
        evidence = make_evidence(scores, self.scale, mean=mean, num_clips=num_files)
        return _weigh(evidence, self.sequences)

    def save(self, folder: Path) -> None:
        write_json(folder / FILE, asdict(self))

    @classmethod
    def load(cls, folder: Path) -> Calibration | None:
        """Read the calibration of a model folder; None if it has none."""
        path = folder / FILE
        try:
            return cls(**untrusted.read_object(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            raise CheckpointError(f"{path}: not a calibration ({cause_of(error)})") from error


def make_evidence(
    scores: NDArray[np.floating[Any]],
    scale: float,
    *,
    mean: float,
    num_clips: int,
    files: Sequence[int] | NDArray[np.integer[Any]] | None = None,
) -> NDArray[np.float64]:
    """Return the evidence ``[clips, FEATURES]`` for the clips of a shortlist; see the module."""
    values = np.asarray(scores, np.float64)
    if not len(values):
        return np.zeros((0, len(FEATURES)))
    owners = np.arange(len(values)) if files is None else np.asarray(files)
    _, groups = np.unique(owners, return_inverse=True)
    best = np.full(groups.max() + 1, -np.inf)
    np.maximum.at(best, groups, values)
    rivals = np.sort(best)[::-1][:MAX_RIVALS]
    # Each clip is compared with the other files, so its own file is subtracted from the sum.
    log_all = _log_sum(scale * rivals)
    is_rival = best[groups] >= rivals[-1]
    log_others = _log_difference(log_all, np.where(is_rival, scale * best[groups], -np.inf))
    log_shares = scale * values - np.logaddexp(log_others, scale * values)
    is_best = (best[groups] >= rivals[0]) & (len(rivals) > 1)
    strongest = np.where(is_best, rivals[min(1, len(rivals) - 1)], rivals[0])
    columns = (
        np.ones(len(values)),
        log_shares,
        values - strongest if len(rivals) > 1 else np.zeros(len(values)),
        values,
        np.full(len(values), mean),
        np.full(len(values), math.log(max(num_clips, 1))),
    )
    return np.stack(columns, axis=1)


def format_confidence(confidence: float) -> str:
    """Format a confidence in whole percent, rounded down so that it agrees with its label.

    >>> format_confidence(0.696), format_confidence(0.7), format_confidence(0.29)
    ('69%', '70%', '29%')
    """
    return f"{math.floor(round(100 * confidence, 6))}%"


def match_text(hit: Hit) -> str:
    """Describe how well a hit matches: confidence, modality of the matching line, or score.

    Empty for a negative score and for a sequence, whose score is a mean of corrected cosines:
    neither number helps people.
    """
    if hit.confidence is not None:
        return f"{hit.match} {format_confidence(hit.confidence)}"
    if hit.transcript:
        return f"in {hit.matched_in[0]}"
    return "" if "steps" in hit.metadata or hit.score < 0 else f"score {hit.score:.3f}"


def fits_nothing(confidences: Sequence[float | None]) -> bool:
    """Return whether no hit is likely to be right; False if any hit has no confidence.

    Hits in transcripts, and hits of models without a calibration, have none.
    """
    values = [value for value in confidences if value is not None]
    return bool(values) and len(values) == len(confidences) and max(values) < MIN_LIKELY


def _weigh(evidence: NDArray[np.float64], weights: Mapping[str, float]) -> NDArray[np.float64]:
    return _sigmoid(evidence @ np.array([weights[name] for name in FEATURES]))


def _log_sum(values: NDArray[np.float64]) -> float:
    highest = float(values.max())
    return highest + math.log(float(np.exp(values - highest).sum()))


def _log_difference(total: float, part: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log(exp(total) - exp(part)), and -inf where the two are equal."""
    with np.errstate(divide="ignore", invalid="ignore"):
        difference: NDArray[np.float64] = total + np.log1p(-np.exp(np.minimum(part - total, 0.0)))
    # 1e-12: rounding error of a sum of 100 numbers.
    return np.where(part - total > -1e-12, -np.inf, difference)


def _sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = 0.5 * (1 + np.tanh(values / 2))
    return result
