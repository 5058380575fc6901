"""Joint ranking of steps, compared with trying every combination."""

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglenet.search.sequences import FrameSequence, _step_moments, rank_sequences


def try_everything(
    scores: np.ndarray, seconds: np.ndarray, files: np.ndarray, within: float | None
) -> dict[int, float]:
    """Best mean per file, by trying all frames for all steps."""
    best: dict[int, float] = {}
    for frames in product(range(len(seconds)), repeat=len(scores)):
        gaps = np.diff(seconds[list(frames)])
        if len({int(files[frame]) for frame in frames}) > 1 or not (gaps > 0).all():
            continue
        if within is not None and (gaps > within).any():
            continue
        mean = float(np.mean([scores[step, frame] for step, frame in enumerate(frames)]))
        file = int(files[frames[0]])
        if np.isfinite(mean):
            best[file] = max(best.get(file, -np.inf), mean)
    return best


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(2, 3),
    st.integers(1, 9),
    st.sampled_from([None, 0.5, 2.0, 30.0]),
)
def test_ranking_equals_trying_every_combination(
    seed: int, num_steps: int, num_frames: int, within: float | None
) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=(num_steps, num_frames)).round(1)
    scores[generator.random(scores.shape) < 0.1] = -np.inf
    seconds = generator.integers(0, 6, num_frames).astype(float)
    files = generator.integers(0, 3, num_frames)
    sequences = rank_sequences(scores, seconds, files, within=within, k=100)
    expected = try_everything(scores, seconds, files, within)
    found = {int(files[sequence.frames[0]]): sequence.score for sequence in sequences}
    assert found == pytest.approx(expected)
    for sequence in sequences:
        values = [scores[step, frame] for step, frame in enumerate(sequence.frames)]
        assert sequence.score == pytest.approx(float(np.mean(values)))
        assert (np.diff(seconds[list(sequence.frames)]) > 0).all()
    ranked = [sequence.score for sequence in sequences]
    assert ranked == sorted(ranked, reverse=True)


def test_the_order_of_steps_decides() -> None:
    scores = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    seconds, files = np.array([0.0, 5.0, 0.0, 5.0]), np.array([0, 0, 1, 1])
    sequences = rank_sequences(scores, seconds, files)
    assert [(sequence.score, sequence.frames) for sequence in sequences] == [
        (1.0, (0, 1)),
        (0.0, (2, 3)),
    ]


def test_steps_further_apart_than_allowed_are_no_sequence() -> None:
    scores = np.array([[1.0, 0.0], [0.0, 1.0]])
    seconds, files = np.array([0.0, 31.0]), np.array([0, 0])
    assert rank_sequences(scores, seconds, files, within=30.0) == []
    assert len(rank_sequences(scores, seconds, files, within=31.0)) == 1


def test_no_frames_give_no_sequences() -> None:
    assert rank_sequences(np.zeros((2, 0)), np.zeros(0), np.zeros(0, int)) == []


def test_only_the_k_best_files_are_returned() -> None:
    scores = np.tile(np.arange(10.0), (2, 1))
    seconds, files = np.tile([0.0, 1.0], 5), np.repeat(np.arange(5), 2)
    sequences = rank_sequences(scores, seconds, files, k=2)
    assert [sequence.frames for sequence in sequences] == [(8, 9), (6, 7)]


def test_moments_of_steps_do_not_overlap() -> None:
    features = SimpleNamespace(mask=np.ones((1, 6)), seconds=np.arange(6.0)[None])
    clip = SimpleNamespace(start=0.0, end=6.0)
    # Both steps match frames 2 and 3; the moment of each reaches over the frame of the other.
    scores = np.array([[[0, 0, 1, 0.9, 0, 0]], [[0, 0, 0.9, 1, 0, 0]]], np.float32)
    first, second = _step_moments(FrameSequence(1.0, (2, 3)), features, scores, [clip])
    assert (first.best, second.best) == (2.0, 3.0)
    assert first.start < first.best < first.end == second.start == 2.5
    assert second.best < second.end
