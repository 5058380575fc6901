"""Bounds of the benchmark of confidence: captions of other people, and halves without a leak."""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from calibration import Gallery
from confidence_candidates import Material, compare_captions, take_half
from eaglenet.store.hubness import HubnessBank


def test_a_text_is_compared_with_other_captions_only() -> None:
    captions = ["a red fox", "a fox runs", "the blue boat", "a boat sails", "a fox sleeps"]
    owners = np.array([0, 0, 1, 1, 2])
    fits = compare_captions(captions, owners, 3)
    # "a red fox" shares the fox with one caption of its clip and with the third, not with boats.
    assert fits.shape == (5, 3)
    assert fits[0, 2] > fits[0, 1]
    # Its only other caption and itself, which counts as -1: the mean of the two.
    assert -0.5 < fits[0, 0] < 0.0


def test_halves_keep_the_clip_of_each_text() -> None:
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(6, 4)).astype(np.float32)
    clip_of_text = np.array([0, 1, 2, 3, 3, 1])
    texts = generator.normal(size=(6, 5)).astype(np.float32)
    clips = generator.normal(size=(4, 5)).astype(np.float32)
    subjects = np.eye(4, dtype=bool)
    bank = HubnessBank("of a test", clips[:2], 1.0, 20.0)
    whole = Material(
        Gallery(scores, clip_of_text, subjects), texts, clips, bank, np.arange(6), None, scores
    )
    half = take_half(whole, np.array([1, 3]))
    assert half.gallery.clip_of_text.tolist() == [0, 1, 1, 0]
    assert half.num_words.tolist() == [1, 3, 4, 5]
    np.testing.assert_array_equal(half.gallery.scores, scores[[1, 3, 4, 5]][:, [1, 3]])
    np.testing.assert_array_equal(half.clips, clips[[1, 3]])
    assert half.fits is not None
    np.testing.assert_array_equal(half.fits, half.gallery.scores)
