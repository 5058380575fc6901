"""Fit and measure the confidence of a model's hits (:mod:`eaglenet.search.confidence`).

Texts of videos that the model was not trained on are searched in random galleries. In some of them
the subject of the text is absent: they have no video of its category. Weights are fitted on four
fifths of the videos and measured on the others, for each of the five fifths.
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
"""Number of first hits of each search that are fitted and measured."""
BINS = 10
"""Bins of equal size for the calibration error."""
RIDGE = 1e-4
NEWTON_STEPS = 30
SCALE = 30.0
"""Factor of scores in the softmax, the best between 10 and 80 for ``small`` (AUC 0.74 at both)."""


AddEvidence = Callable[[int, NDArray[np.int64]], NDArray[np.float64]]


@dataclass(frozen=True)
class Gallery:
    """Scores of texts with clips, and the right clips.

    scores: cosines minus hubness offsets, ``[texts, clips]``.
    clip_of_text: right clip per text.
    subjects: whether a clip shows a subject, ``[clips, subjects]``. The subjects of a clip without
        any are unknown, and it is never in a gallery from which a subject is absent.
    """

    scores: NDArray[np.float32]
    clip_of_text: NDArray[np.int64]
    subjects: NDArray[np.bool_]

    def without_subject(self, clip: int) -> NDArray[np.int64]:
        """Return the clips that show none of the subjects of a clip."""
        is_known = self.subjects.any(axis=1)
        return np.flatnonzero(is_known & ~self.subjects[:, self.subjects[clip]].any(axis=1))

    def can_lack_subjects(self, size: int) -> bool:
        """Return whether galleries of this size can be drawn without the subject of a text."""
        targets = np.unique(self.clip_of_text)[::7]
        return all(len(self.without_subject(int(clip))) >= size for clip in targets)


@dataclass(frozen=True)
class Trials:
    """Hits of many searches: their evidence, and whether each is right."""

    evidence: NDArray[np.float64]
    is_right: NDArray[np.bool_]
    is_first: NDArray[np.bool_]
    is_present: NDArray[np.bool_]
    """Whether the right clip was in the gallery."""
    clips: NDArray[np.int64]
    """Right clip of the text, whether it is in the gallery or not."""

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
    """Search ``count`` texts in galleries whose sizes are drawn log-uniformly from ``sizes``.

    A fraction ``absent_share`` of the galleries has no clip of the text's subject. ``add_evidence``
    returns more columns ``[HITS, columns]`` for a text and its clips, best first.
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


def fit_weights(trials: Trials) -> NDArray[np.float64]:
    """Fit the weights of a logistic regression by Newton's method."""
    evidence, right = trials.evidence, trials.is_right.astype(np.float64)
    # Columns are standardised, so that the ridge has the same effect on all.
    deviation = np.maximum(evidence.std(axis=0), 1e-9)
    centre = evidence.mean(axis=0)
    deviation[0], centre[0] = 1.0, 0.0
    columns = (evidence - centre) / deviation
    weights = np.zeros(columns.shape[1])
    for _ in range(NEWTON_STEPS):
        odds = 1 / (1 + np.exp(-columns @ weights))
        gradient = columns.T @ (odds - right) / len(right) + RIDGE * weights
        curvature = (columns * (odds * (1 - odds))[:, None]).T @ columns / len(right)
        weights -= np.linalg.solve(curvature + RIDGE * np.eye(len(weights)), gradient)
    raw_weights: NDArray[np.float64] = weights / deviation
    raw_weights[0] -= float((raw_weights * centre)[1:].sum())
    return raw_weights


def cross_fit(fitting: Trials, trials: Trials) -> NDArray[np.float64]:
    """Return the confidences of ``trials``, each by weights fitted without its video."""
    confidences = np.zeros(len(trials.is_right))
    for fold in range(FOLDS):
        weights = fit_weights(fitting[fitting.clips % FOLDS != fold])
        own = trials.clips % FOLDS == fold
        confidences[own] = 1 / (1 + np.exp(-trials.evidence[own] @ weights))
    return confidences


def roc_auc(values: NDArray[np.float64], is_right: NDArray[np.bool_]) -> float:
    """Return the probability that a right hit has a higher value than a wrong one.

    Ties count half.

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
    """Return the mean over bins of |mean confidence - fraction of right hits|."""
    bins = np.array_split(np.argsort(confidences, kind="stable"), BINS)
    errors = [
        len(own) * abs(float(confidences[own].mean()) - float(is_right[own].mean()))
        for own in bins
        if len(own)
    ]
    return float(sum(errors) / len(confidences))


def measure(trials: Trials, confidences: NDArray[np.float64]) -> dict[str, Any]:
    """Return AUC and calibration error of first hits, and how often no hit is deemed likely."""
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
        is_right = present & right
        result |= {
            "absent": float((~present).mean()),
            "auc_present_or_absent": roc_auc(own, present),
            "auc_right_first_or_absent": roc_auc(
                own[is_right | ~present], is_right[is_right | ~present]
            ),
            "nothing_where_absent": float((own[~present] < MIN_LIKELY).mean()),
            "nothing_where_first_is_right": float((own[is_right] < MIN_LIKELY).mean()),
            "nothing_where_present": float((own[present] < MIN_LIKELY).mean()),
        }
    return {
        name: round(value, 4) if isinstance(value, float) else value
        for name, value in result.items()
    }


def make_calibration(
    trials: Trials, identity: str, hubness: str, measurement: dict[str, Any] | None = None
) -> Calibration:
    """Fit the calibration of a model to all videos."""
    weights = zip(FEATURES, fit_weights(trials), strict=True)
    weight_of = {name: round(float(value), 6) for name, value in weights}
    return Calibration(identity, hubness, SCALE, weight_of, measurement or {})


def score_texts(
    texts: NDArray[np.float32],
    clips: NDArray[np.float32],
    offsets: Sequence[float] | NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return the cosines of unit vectors minus the offsets of the clips, ``[texts, clips]``."""
    result: NDArray[np.float32] = (texts @ clips.T - np.asarray(offsets, np.float32)).astype(
        np.float32
    )
    return result
