"""Dual softmax and QB-norm on matrices that are not square."""

import pytest
import torch

from eaglenet.core.errors import UsageError
from eaglenet.research.evaluation.postprocessing import (
    dual_softmax,
    querybank_norm,
    sinkhorn_norm,
)


def test_dual_softmax_by_hand() -> None:
    scores = torch.tensor([[0.0, 1.0, 0.5], [0.0, 0.0, 0.5]])
    expected_prior = torch.tensor([[0.5, 0.7310586, 0.5], [0.5, 0.2689414, 0.5]])
    torch.testing.assert_close(dual_softmax(scores, temperature=1.0), scores * expected_prior)


def test_querybank_norm_demotes_a_hub() -> None:
    # Video 0 is near to everything: the bank shows it, and text 1 then finds its own video 1.
    scores = torch.tensor([[0.90, 0.10, 0.10], [0.80, 0.79, 0.10]])
    bank = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.1], [0.9, 0.0, 0.2], [0.7, 0.1, 0.1]])
    assert scores.argmax(dim=1).tolist() == [0, 0]
    assert querybank_norm(scores, bank).argmax(dim=1).tolist() == [0, 1]


def test_querybank_norm_leaves_texts_whose_best_video_is_no_hub() -> None:
    scores = torch.tensor([[0.1, 0.2, 0.9]])
    bank = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.1]])
    assert torch.equal(querybank_norm(scores, bank), scores)


def test_querybank_norm_survives_large_scores() -> None:
    assert querybank_norm(1e4 * torch.rand(3, 5), 1e4 * torch.rand(7, 5)).isfinite().all()


def test_a_bank_of_other_videos_is_refused() -> None:
    with pytest.raises(UsageError, match="bank scores 4 videos but the matrix has 5"):
        querybank_norm(torch.rand(3, 5), torch.rand(7, 4))


def test_sinkhorn_takes_from_videos_that_training_queries_crowd_at() -> None:
    """The bank finds video 0 for every query: its bias falls below that of the others."""
    bank = torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.3, 0.2]], dtype=torch.float64)
    scores = torch.tensor([[0.5, 0.49, 0.1]], dtype=torch.float64)
    normalised = sinkhorn_norm(scores, bank, temperature=10.0)
    assert scores.argmax() == 0
    assert normalised.argmax() == 1
    columns = torch.exp(10.0 * bank)
    columns = columns / columns.sum(dim=0, keepdim=True)
    for _ in range(4):  # the same by plain normalisations of the matrix
        columns = columns / columns.sum(dim=1, keepdim=True)
        columns = columns / columns.sum(dim=0, keepdim=True)
    scaling = (columns / torch.exp(10.0 * bank)).log()
    # A row's scaling is the same for all columns and leaves in the log-softmax.
    expected = 10.0 * scores + scaling[0].log_softmax(dim=0)
    torch.testing.assert_close(normalised, expected)
    turned = sinkhorn_norm(scores.T, bank.T, direction="video_to_text", temperature=10.0)
    torch.testing.assert_close(turned.T, normalised)
    with pytest.raises(UsageError, match="against 2 videos"):
        sinkhorn_norm(scores, bank[:, :2])
    with pytest.raises(UsageError, match="training videos are scored against 2 texts"):
        sinkhorn_norm(scores, bank, direction="video_to_text")
