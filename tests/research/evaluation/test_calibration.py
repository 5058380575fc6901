"""Fitting and measuring confidences, on scores whose law is known."""

import sys
from pathlib import Path

import numpy as np
import pytest

from eaglenet.search.confidence import FEATURES

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

from calibration import (
    Gallery,
    Trials,
    calibration_error,
    cross_fit,
    draw_trials,
    fit_weights,
    make_calibration,
    measure,
    roc_auc,
)


def make_trials(count: int = 20_000) -> tuple[Trials, np.ndarray]:
    """Trials whose probabilities are known: those of a logistic law."""
    generator = np.random.default_rng(0)
    evidence = np.concatenate(
        [np.ones((count, 1)), generator.normal(size=(count, len(FEATURES) - 1))], axis=1
    )
    weights = np.array([-0.5, 1.0, 2.0, -0.3, 0.0, 0.4])
    odds = 1 / (1 + np.exp(-evidence @ weights))
    yes = np.ones(count, bool)
    right = generator.random(count) < odds
    return Trials(evidence, right, yes, yes, generator.integers(50, size=count)), weights


def test_fitting_finds_the_weights_of_a_logistic_law() -> None:
    trials, weights = make_trials()
    assert fit_weights(trials) == pytest.approx(weights, abs=0.08)


def test_confidences_fitted_without_their_video_are_calibrated() -> None:
    trials, _ = make_trials()
    confidences = cross_fit(trials, trials)
    assert calibration_error(confidences, trials.is_right) < 0.02
    # Half of the truth would be noticed.
    assert calibration_error(confidences / 2, trials.is_right) > 0.1


def test_auc_counts_ties_half() -> None:
    assert roc_auc(np.zeros(4), np.array([True, False, True, False])) == 0.5
    assert roc_auc(np.array([3.0, 1.0, 2.0]), np.array([True, False, False])) == 1.0
    assert np.isnan(roc_auc(np.zeros(2), np.array([True, True])))


def make_gallery(num_texts: int = 300, num_clips: int = 60) -> Gallery:
    generator = np.random.default_rng(1)
    clips = generator.integers(num_clips, size=num_texts)
    scores = generator.normal(0.0, 0.05, (num_texts, num_clips))
    scores[np.arange(num_texts), clips] += generator.uniform(0.0, 0.3, num_texts)
    subjects = np.arange(num_clips)[:, None] % 6 == np.arange(6)
    return Gallery(scores.astype(np.float32), clips, subjects)


def test_absent_subjects_are_never_right_and_have_less_confidence() -> None:
    trials = draw_trials(make_gallery(), sizes=(20, 40), count=2000, absent_share=0.5)
    assert not trials.is_right[~trials.is_present].any()
    result = measure(trials, cross_fit(trials, trials))
    assert result["auc"] > 0.8
    assert result["calibration_error"] < 0.05
    assert result["auc_right_first_or_absent"] > 0.8
    assert result["nothing_where_absent"] > result["nothing_where_first_is_right"]


def test_galleries_without_a_subject_are_large_enough_or_not_drawn() -> None:
    """An image may show several subjects, and one of unknown subjects may show any."""
    gallery = make_gallery()
    subjects = gallery.subjects.copy()
    subjects[0, 1] = True  # Shows subjects 0 and 1.
    subjects[7] = False
    others = Gallery(gallery.scores, gallery.clip_of_text, subjects).without_subject(0)
    assert set(others % 6) == {2, 3, 4, 5}
    assert len(others) == 40
    assert 7 not in others
    assert gallery.can_lack_subjects(50)
    assert not gallery.can_lack_subjects(51)


def test_a_calibration_gives_the_confidences_that_were_fitted() -> None:
    trials = draw_trials(make_gallery(), sizes=(20, 40), count=500, absent_share=0.0)
    calibration = make_calibration(trials, "abc", "")
    expected = 1 / (1 + np.exp(-trials.evidence @ fit_weights(trials)))
    weights = np.array([calibration.weights[name] for name in FEATURES])
    assert 1 / (1 + np.exp(-trials.evidence @ weights)) == pytest.approx(expected, abs=1e-4)
