"""Fast scorers are found by the name of a method, so another package can bring one."""

from __future__ import annotations

import pytest
import torch
from scoring_cases import model, texts, videos
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.methods.xpool import XPool
from eaglenet.scoring import Scorer, choose, score_all
from eaglenet.scoring.scorer import FAST_FORMS, Precision, ReferenceScorer


class Doubled(Scorer):
    """Scores that nobody else gives: twice the cosine of the mean frame."""

    tile_texts, tile_videos = 4, 3

    def __init__(self, precision: Precision) -> None:
        self.precision = precision

    def _prepare(self, video: VideoFeatures) -> Tensor:
        return video.frames.mean(dim=1)

    def _score(self, text: TextFeatures, prepared: Tensor) -> Tensor:
        return 2 * text.sentence @ prepared.T


class Form:
    """A fast form without a kernel."""

    def factorised_scorer(self, precision: Precision) -> Scorer:
        return Doubled(precision)

    def kernel_scorer(self, precision: Precision) -> Scorer:
        raise AssertionError("there is none")

    def why_no_kernel(self, video: VideoFeatures) -> str | None:
        return "nobody wrote one"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Method:
    """A model that calls itself by a name of its own."""
    method = model()
    monkeypatch.setattr(type(method), "name", "other", raising=True)
    return method


def test_a_method_without_a_fast_form_is_scored_by_its_own_score(other: Method) -> None:
    assert isinstance(choose(other, videos(3)), ReferenceScorer)
    with pytest.raises(UsageError, match="other has no factorised form"):
        choose(other, videos(3), backend="factorised")
    assert XPool.name not in FAST_FORMS


def test_a_registered_form_scores_the_method_of_its_name(
    other: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAST_FORMS._entries, "other", lambda method, device: Form())
    text, video = texts(5), videos(7)
    expected = 2 * text.sentence @ video.frames.mean(dim=1).T
    torch.testing.assert_close(score_all(other, text, video), expected)
    with pytest.raises(UsageError, match="nobody wrote one"):
        choose(other, video, backend="kernel")
    monkeypatch.setitem(FAST_FORMS._entries, "other", lambda method, device: None)
    assert isinstance(choose(other, video), ReferenceScorer)
