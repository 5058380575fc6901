"""Bounds of the benchmark of confidence: captions of other people, and halves without a leak."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import confidence
import confidence_features
import confidence_filters
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


def test_stored_features_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    num_videos, num_captions = 306, 4
    videos = generator.normal(size=(num_videos, 200)).astype(np.float32)
    texts = np.repeat(videos, num_captions, axis=0)
    texts += generator.normal(size=texts.shape).astype(np.float32)
    scales = np.abs(texts).max(axis=1, keepdims=True) / 127
    np.save(tmp_path / "frame_features.npy", videos)
    np.save(tmp_path / "sentence_features_int8.npy", np.round(texts / scales).astype(np.int8))
    np.save(tmp_path / "sentence_scales.npy", scales)
    ids = [f"video{number}" for number in range(num_videos)]
    index = {"video_ids": ids, "frames_per_video": [1] * num_videos}
    (tmp_path / "index.json").write_text(json.dumps({**index, "captions_per_video": num_captions}))
    rows = [{"video_id": name, "category": number % 8} for number, name in enumerate(ids)]
    (tmp_path / "subjects.json").write_text(json.dumps({"videos": rows}))
    monkeypatch.setattr(confidence, "FITTED", 100)
    monkeypatch.setattr(confidence, "MEASURED", 60)
    monkeypatch.setattr(confidence_features, "BANK_TEXTS", 50)
    results: dict[str, Any] = {}
    monkeypatch.setattr(confidence_features, "save_result", results.__setitem__)
    subjects = str(tmp_path / "subjects.json")
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path), "--subjects", subjects])
    confidence_features.main()
    rows = results["confidence-features"]["rows"]
    assert [row["gallery"] for row in rows] == [100, 100, 300]
    monkeypatch.setattr(confidence_filters, "SIZES", (200,))
    monkeypatch.setattr(confidence_filters, "SEARCHES", 60)
    monkeypatch.setattr(
        confidence_filters, "save_result", lambda name, value, _: results.update({name: value})
    )
    confidence_filters.main()
    rows = results["confidence-filters"]["rows"]
    assert [(row["filter"], row["passes"]) for row in rows] == [
        (kind, passes) for kind in ("random tenth", "category") for passes in (1.0, 0.5, 0.0)
    ]
    assert [row["right_first"] for row in rows if not row["passes"]] == [0.0, 0.0]
