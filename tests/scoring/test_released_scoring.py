"""The benchmark's re-creation of the released loop computes the scores that it is timed for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scoring_cases import RELEASED, largest_difference, model, texts, videos

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_re_created_loop_gives_our_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from released import ReleasedScoring

    method, text, video = model(**RELEASED), texts(9), videos(10)  # two uneven batches of 8
    with torch.no_grad():
        scores = ReleasedScoring(method).score_all(text, video, method.noise)
        expected = method.score(text, video)
    assert largest_difference(scores, expected) < 1e-6
