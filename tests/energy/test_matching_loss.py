"""The energy loss by hand."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from eaglenet.energy.energies import energy_matching_loss

ENERGIES = torch.tensor([[-1.0, 0.5, 2.0], [0.0, -2.0, 1.0]])
POSITIVES = torch.tensor([[True, False, False], [False, True, False]])
SAMPLED = torch.tensor([3.0, 1.0, -1.0, 1.0])


def test_real_pairs_against_sampled_ones_by_hand() -> None:
    difference = -1.5 - 1.0
    size = (1.0 + 4.0) / 2 + (9.0 + 1.0 + 1.0 + 1.0) / 4
    loss = energy_matching_loss(ENERGIES, POSITIVES, SAMPLED, penalty=0.5)
    assert_close(loss, torch.tensor(difference + 0.5 * size))


def test_in_batch_negatives_are_averaged_with_the_chain() -> None:
    chain = energy_matching_loss(ENERGIES, POSITIVES, SAMPLED, penalty=1.0)
    negatives = (0.5 + 2.0 + 0.0 + 1.0) / 4
    size = 2.5 + (0.25 + 4.0 + 0.0 + 1.0) / 4
    batch = torch.tensor(-1.5 - negatives + size)
    both = energy_matching_loss(ENERGIES, POSITIVES, SAMPLED, in_batch=True)
    assert_close(both, (chain + batch) / 2)


def test_one_pair_alone_has_no_in_batch_negatives_and_stays_finite() -> None:
    loss = energy_matching_loss(
        torch.tensor([[0.5]]), torch.tensor([[True]]), torch.tensor([1.0]), in_batch=True
    )
    assert loss.isfinite()


def test_two_captions_of_one_video_are_both_real_pairs() -> None:
    energies = torch.tensor([[-1.0, -1.0], [-1.0, -1.0]])
    everywhere = torch.ones(2, 2, dtype=torch.bool)
    loss = energy_matching_loss(energies, everywhere, SAMPLED, penalty=0.0, in_batch=True)
    assert_close(loss, torch.tensor(((-1.0 - 1.0) + (-1.0 - 0.0)) / 2))
