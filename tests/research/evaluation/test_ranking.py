"""Ranks from blocks and from several processes' shares equal those of the whole matrix."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.base import METHODS, Method
from eaglenet.research.evaluation.metrics import EvaluationProcess, rank_pairs, retrieval_metrics

TEXTS, VIDEOS, FRAMES, DIM = 11, 7, 3, 8


@pytest.fixture
def features() -> tuple[TextFeatures, VideoFeatures, Tensor]:
    """Texts, videos, and which video each text belongs to."""
    draw = torch.Generator().manual_seed(0)
    text = TextFeatures(torch.randn(TEXTS, DIM, generator=draw))
    mask = torch.ones(VIDEOS, FRAMES, dtype=torch.bool)
    video = VideoFeatures(torch.randn(VIDEOS, FRAMES, DIM, generator=draw), mask)
    return text, video, torch.tensor([3, 0, 0, 6, 1, 2, 2, 5, 3, 0, 1])


@pytest.fixture
def method() -> Method:
    """Mean pooling of features as they are."""
    spec = METHODS["clip4clip"]
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM, identity=True))
    return spec.build(spec.config_class(num_frames=FRAMES), encoder).eval()


def summing(size: int) -> list[Callable[..., Any]]:
    """``total`` of each of several threads that stand for processes."""
    barrier, given = threading.Barrier(size), {}

    def total(rank: Any) -> Any:
        def add(value: Any) -> Any:
            given[rank] = value
            barrier.wait(60)
            result = sum(given[other] for other in range(size))
            barrier.wait(60)
            return result

        return add

    return [total(rank) for rank in range(size)]


@pytest.mark.parametrize("size", [1, 2, 3, 9])
@pytest.mark.parametrize("max_scores", [1, 12, 1000])
def test_shares_of_the_videos_give_the_ranks_of_the_whole(
    method: Method,
    features: tuple[TextFeatures, VideoFeatures, Tensor],
    size: int,
    max_scores: int,
) -> None:
    text, video, owners = features
    expected = retrieval_metrics(method.score(text, video), owners)
    totals = summing(size)

    def ranked(rank: Any) -> Any:
        process = EvaluationProcess(rank, size, totals[rank], gather=lambda rows, count: rows)
        with torch.no_grad():
            return rank_pairs(method, text, video, owners, max_scores=max_scores, process=process)

    with ThreadPoolExecutor(size) as pool:
        assert set(pool.map(ranked, range(size))) == {expected}


@pytest.mark.parametrize("max_scores", [5, 1000])
def test_the_matrix_is_written_in_the_order_of_the_texts(
    method: Method,
    features: tuple[TextFeatures, VideoFeatures, Tensor],
    tmp_path: Path,
    max_scores: int,
) -> None:
    text, video, owners = features
    file = tmp_path / "scores.npy"
    with torch.no_grad():
        rank_pairs(method, text, video, owners, max_scores=max_scores, scores_file=file)
        expected = method.score(text, video)
    assert np.allclose(np.load(file), expected.numpy(), atol=1e-6)
