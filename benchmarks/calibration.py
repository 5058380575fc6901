"""Fit and measure the confidence of a model's hits (:mod:`eaglenet.search.confidence`).

Texts of videos that the model was not trained on are searched in galleries drawn at random. In some
of them the subject of the text is absent: no video of its category is there. Weights are fitted on
four fifths of the videos and measured on the others, five times over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.confidence import FEATURES, MAX_RIVALS, MIN_LIKELY, Calibration, make_evidence

FOLDS = 5
HITS = 3
"""First hits of each search that are fitted and measured."""
BINS = 10
"""Bins of equal size for the calibration error."""
RIDGE = 1e-4
SCALE = 30.0
"""Factor on scores in the softmax: the best of 10 to 80 for ``small`` (AUC 0.74 at both ends)."""


AddEvidence = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Gallery:
    """Scores of texts over clips, and what belongs together.

    scores: cosines minus hubness offsets, ``[texts, clips]``.
    clip_of_text: right clip per text.
    subjects: whether a clip shows a subject, ``[clips, subjects]``. A clip without any is unknown,
        and never part of a gallery from which a subject is absent.
    """

    scores: NDArray[np.float32]
    clip_of_text: NDArray[np.int64]
    subjects: NDArray[np.bool_]

    def without_subject(self, clip: int) -> NDArray[np.int64]:
        """Clips that show none of the subjects of a clip."""
        is_known = self.subjects.any(axis=1)
        return np.flatnonzero(is_known & ~self.subjects[:, self.subjects[clip]].any(axis=1))

    def can_lack_subjects(self, size: int) -> bool:
        """Return whether galleries of this size can be drawn without the subject of a text."""
        targets = np.unique(self.clip_of_text)[::7]
        return all(len(self.without_subject(int(clip))) >= size for clip in targets)


@dataclass(frozen=True)
class Trials:
    """Hits of many searches: evidence, and whether each is right."""

    evidence: NDArray[np.float64]
    is_right: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    is_present: NDArray[np.bool_]
    """Whether the right clip was in the gallery."""
    clips: NDArray[np.int64]
    """Right clip of the text, in the gallery or not."""

    def __getitem__(self, mask: NDArray[np.bool_]) -> Trials:
        return Trials(
            self.evidence[mask],
            self.is_right[mask],
            self.is_first[mask],
            self.is_present[mask],
            self.clips[mask],
        )


def join_trials(*parts: Trials) -> Trials:
    """Join trials of several galleries."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Trials(*map(np.concatenate, columns))


def draw_trials(
    gallery: Gallery,
    *,
    sizes: tuple[int, int],
    count: int,
    absent_share: float,
    seed: int = 0,
    add_evidence: AddEvidence | None = None,
) -> Trials:
    """Search ``count`` texts in galleries whose size is drawn, log-uniformly, from ``sizes``.

    In ``absent_share`` of them no clip of the text's subject is there. ``add_evidence`` returns
    more columns ``[HITS, columns]`` for a text and its clips, best first.
    """
    generator = np.random.default_rng(seed)
    num_texts, num_clips = gallery.scores.shape
    evidence, right, first, present, clips = [], [], [], [], []
    for text in generator.integers(num_texts, size=count):
        target = int(gallery.clip_of_text[text])
        is_present = bool(generator.random() >= absent_share)
        size = round(float(np.exp(generator.uniform(*np.log(sizes)))))
        if is_present:
            pool = np.delete(np.arange(num_clips), target)
            members = np.append(generator.permutation(pool)[: size - 1], target)
        else:
            members = generator.permutation(gallery.without_subject(target))[:size]
        scores = gallery.scores[text, members]
        order = np.argsort(-scores, kind="stable")[: MAX_RIVALS + HITS]
        own = make_evidence(scores[order], SCALE, mean=float(scores.mean()), num_clips=len(members))
        own = own[:HITS]
        if add_evidence is not None:
            own = np.concatenate([own, add_evidence(int(text), members[order])], axis=1)
        evidence.append(own)
        right.append(members[order[:HITS]] == target)
        first.append(np.arange(len(right[-1])) == 0)
        present.append(np.full(len(right[-1]), is_present))
        clips.append(np.full(len(right[-1]), target))
    return Trials(*map(np.concatenate, (evidence, right, first, present, clips)))


def fit_weights(trials: Trials, rounds: int = 30) -> NDArray[np.float64]:
    """Weights of a logistic regression, by Newton's method."""
    evidence, right = trials.evidence, trials.is_right.astype(np.float64)
    # Columns of one size: the ridge then means the same for all.
    spread = np.maximum(evidence.std(axis=0), 1e-9)
    centre = evidence.mean(axis=0)
    spread[0], centre[0] = 1.0, 0.0
    columns = (evidence - centre) / spread
    weights = np.zeros(columns.shape[1])
    for _ in range(rounds):
        odds = 1 / (1 + np.exp(-columns @ weights))
        gradient = columns.T @ (odds - right) / len(right) + RIDGE * weights
        curvature = (columns * (odds * (1 - odds))[:, None]).T @ columns / len(right)
        weights -= np.linalg.solve(curvature + RIDGE * np.eye(len(weights)), gradient)
    fitted: NDArray[np.float64] = weights / spread
    fitted[0] -= float((fitted * centre)[1:].sum())
    return fitted


def cross_fit(fitting: Trials, measured: Trials) -> NDArray[np.float64]:
    """Confidences of ``measured``, each from weights fitted without its video."""
    confidences = np.zeros(len(measured.is_right))
    for fold in range(FOLDS):
        weights = fit_weights(fitting[fitting.clips % FOLDS != fold])
        own = measured.clips % FOLDS == fold
        confidences[own] = 1 / (1 + np.exp(-measured.evidence[own] @ weights))
    return confidences


def roc_auc(values: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:
    """Probability that a right hit has a higher value than a wrong one; ties count half.

    >>> roc_auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([False, False, True, True]))
    0.75
    """
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    num_right = int(is_right.sum())
    num_wrong = len(is_right) - num_right
    if not num_right or not num_wrong:
        return float("nan")
    return float((ranks[is_right].sum() - num_right * (num_right + 1) / 2) / num_right / num_wrong)


def calibration_error(confidences: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:
    """Expected calibration error: mean over bins of |mean confidence - share of right hits|."""
    bins = np.array_split(np.argsort(confidences, kind="stable"), BINS)
    errors = [
        len(own) * abs(float(confidences[own].mean()) - float(is_right[own].mean()))
        for own in bins
        if len(own)
    ]
    return float(sum(errors) / len(confidences))


def measure(trials: Trials, confidences: NDArray[np.float64]) -> dict[str, Any]:
    """AUC and calibration error of first hits, and how often nothing is said to be there."""
    first = trials.is_first
    own, right, present = confidences[first], trials.is_right[first], trials.is_present[first]
    result: dict[str, Any] = {
        "searches": int(first.sum()),
        "right_first": float(right[present].mean()),
        "auc": roc_auc(own, right),
        "calibration_error": calibration_error(own, right),
        "auc_of_all_hits": roc_auc(confidences, trials.is_right),
        "calibration_error_of_all_hits": calibration_error(confidences, trials.is_right),
    }
    if not present.all():
        found = present & right
        result |= {
            "absent": float((~present).mean()),
            "auc_present_or_absent": roc_auc(own, present),
            "auc_right_first_or_absent": roc_auc(own[found | ~present], found[found | ~present]),
            "nothing_where_absent": float((own[~present] < MIN_LIKELY).mean()),
            "nothing_where_first_is_right": float((own[found] < MIN_LIKELY).mean()),
            "nothing_where_present": float((own[present] < MIN_LIKELY).mean()),
        }
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in result.items()
    }


def make_calibration(
    trials: Trials, identity: str, hubness: str, measured: dict[str, Any] | None = None
) -> Calibration:
    """Fit the calibration to ship: with all videos."""
    weights = fit_weights(trials)
    named = {name: round(float(value), 6) for name, value in zip(FEATURES, weights, strict=True)}
    return Calibration(identity, hubness, SCALE, named, measured or {})


def score_texts(
    texts: NDArray[np.float32],
    clips: NDArray[np.float32],
    offsets: Sequence[float] | NDArray[np.float32],
) -> NDArray[np.float32]:
    """Cosines of unit vectors minus the offsets of the clips, ``[texts, clips]``."""
    result: NDArray[np.float32] = (texts @ clips.T - np.asarray(offsets, np.float32)).astype(
        np.float32
    )
    return result
