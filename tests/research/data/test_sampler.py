"""The pair sampler: every order can be entered anywhere, alone or in several processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.core.errors import CheckpointError, ConfigError
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World
from eaglenet.research.training.epochs import PairSampler, pair_samplers

# 9 videos with 5 captions each: 45 texts.
OWNERS = torch.arange(9).repeat_interleave(5)


def joined(batches: Iterator[Any] | list[Tensor]) -> list[int]:
    return torch.cat(list(batches)).tolist()


def test_an_epoch_sees_every_caption_once() -> None:
    sampler = PairSampler(OWNERS, 9, seed=0)
    batches = sampler.epoch_batches(0)
    assert [len(batch) for batch in batches] == [9, 9, 9, 9, 9]
    assert len(sampler) == 5
    assert sorted(joined(batches)) == list(range(45))


def test_a_short_last_batch_is_dropped() -> None:
    sampler = PairSampler(OWNERS, 8, seed=0)
    assert len(sampler) == 5
    assert len(set(joined(sampler.epoch_batches(0)))) == 40


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first, again = PairSampler(OWNERS, 8, seed=1), PairSampler(OWNERS, 8, seed=1)
    first.epoch_batches(0)
    assert joined(first.epoch_batches(1)) == joined(again.epoch_batches(1))
    assert joined(first.epoch_batches(0)) != joined(first.epoch_batches(1))
    other = PairSampler(OWNERS, 8, seed=2)
    assert joined(other.epoch_batches(0)) != joined(first.epoch_batches(0))


def test_a_run_with_other_data_or_settings_is_refused() -> None:
    earlier = PairSampler(OWNERS, 8, seed=1).identity()
    PairSampler(OWNERS, 8, seed=1, rank=1, world=2).check_identity(earlier)
    with pytest.raises(CheckpointError, match="batch_size 8, now it is 4"):
        PairSampler(OWNERS, 4, seed=1).check_identity(earlier)
    with pytest.raises(CheckpointError, match="pairs"):
        PairSampler(OWNERS.flip(0), 8, seed=1).check_identity(earlier)


@pytest.mark.parametrize("mode", ["plain", "one_caption"])
def test_ranks_joined_in_order_are_the_single_process_batch(mode: str) -> None:
    options = {} if mode == "plain" else {mode: True}
    single = PairSampler(OWNERS, 6, seed=4, **options)
    ranks = [PairSampler(OWNERS, 6, seed=4, rank=rank, world=3, **options) for rank in range(3)]
    for epoch in range(2):
        parts = [sampler.epoch_batches(epoch) for sampler in ranks]
        assert all(len(part) == len(single) for part in parts)
        for step, batch in enumerate(single.epoch_batches(epoch)):
            assert joined(part[step] for part in parts) == batch.tolist()


def test_one_caption_a_video_draws_another_each_epoch() -> None:
    sampler = PairSampler(OWNERS, 3, seed=0, one_caption=True)
    assert len(sampler) == 3
    epochs = [joined(sampler.epoch_batches(epoch)) for epoch in range(40)]
    for epoch in epochs:
        assert sorted(OWNERS[epoch].tolist()) == list(range(9))
    # All captions are drawn at some time: 45 texts, missed with chance 45 * 0.8^40 < 1%.
    assert len({text for epoch in epochs for text in epoch}) == 45


def test_plain_batches_may_hold_two_captions_of_one_video() -> None:
    sampler = PairSampler(OWNERS, 8, seed=0)
    assert any(len(set(OWNERS[batch].tolist())) < 8 for batch in sampler.epoch_batches(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch size of 1 or more"),
        ({"batch_size": 8, "rank": 2, "world": 2}, "0 <= rank < world"),
        ({"batch_size": 8, "world": 3}, "use a multiple of 3"),
        ({"batch_size": 46}, "45 captions cannot fill one batch of 46"),
        ({"batch_size": 10, "one_caption": True}, "9 videos cannot fill one batch of 10"),
    ],
)
def test_impossible_settings_are_refused_before_training(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        PairSampler(OWNERS, seed=0, **options)


def test_neighbours_meet_in_one_batch_and_couples_are_shuffled() -> None:
    owners = torch.arange(16).repeat_interleave(3)
    sampler = PairSampler(owners, 4, seed=0, one_caption=True, neighbours=True)
    for epoch in (0, 1):
        batches = [owners[batch].tolist() for batch in sampler.epoch_batches(epoch)]
        assert sorted(video for batch in batches for video in batch) == list(range(16))
        assert all({video ^ 1 for video in batch} == set(batch) for batch in batches)
    assert joined(sampler.epoch_batches(0)) != joined(sampler.epoch_batches(1))


def test_neighbours_stay_together_beside_an_odd_last_video() -> None:
    sampler = PairSampler(OWNERS, 4, 0, one_caption=True, neighbours=True)
    for epoch in range(5):
        batches = [OWNERS[batch].tolist() for batch in sampler.epoch_batches(epoch)]
        assert all({video ^ 1 for video in batch} == set(batch) for batch in batches)
    # It is only in the incomplete last batch, which is dropped.
    assert sorted(video for batch in batches for video in batch) == list(range(8))


def test_neighbours_stay_together_in_several_passes_over_an_odd_number_of_videos() -> None:
    sampler = PairSampler(OWNERS, 4, 0, one_caption=True, neighbours=True, epoch_pairs=36)
    for epoch in range(3):
        for batch in sampler.epoch_batches(epoch):
            videos = [video for video in OWNERS[batch].tolist() if video < 8]
            assert {video ^ 1 for video in videos} == set(videos)


@pytest.mark.parametrize(("batch_size", "world"), [(6, World()), (12, World(1, 2))])
def test_chunks_that_divide_neighbours_are_refused(batch_size: int, world: World) -> None:
    config = TrainingConfig(
        batch_size=batch_size, accumulate=2, captions="one", neighbours=True, epoch_pairs=36
    )
    pair_samplers(config, OWNERS, world)
    split = dataclasses.replace(config, accumulation="split")
    with pytest.raises(ConfigError, match=rf"choose a multiple of {4 * world.size} with --set"):
        pair_samplers(split, OWNERS, world)
    pair_samplers(dataclasses.replace(split, batch_size=8), OWNERS, world)


def test_a_batch_that_divides_neighbours_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"batch size 3 divides pairs .* --set training.batch_size$"
    ):
        PairSampler(OWNERS, 3, 0, one_caption=True, neighbours=True)


def test_neighbours_need_one_caption_a_video() -> None:
    with pytest.raises(ConfigError, match="one caption"):
        PairSampler(OWNERS, 4, 0, neighbours=True)


@pytest.mark.parametrize("one_caption", [False, True])
def test_an_epoch_of_a_given_number_of_pairs_repeats_the_data(one_caption: bool) -> None:
    owners = torch.arange(10).repeat_interleave(3)
    plain = PairSampler(owners, 5, seed=1, one_caption=one_caption)
    longer = PairSampler(owners, 5, seed=1, one_caption=one_caption, epoch_pairs=75)
    assert len(longer) == 15
    batches = longer.epoch_batches(2)
    first = len(plain)
    assert torch.equal(torch.cat(batches[:first]), torch.cat(plain.epoch_batches(2)))
    # The second pass has another order, and no video more often than the others.
    assert not torch.equal(torch.cat(batches[first : 2 * first]), torch.cat(batches[:first]))
    counts = torch.bincount(owners[torch.cat(batches)], minlength=10)
    assert counts.max() - counts.min() <= (1 if one_caption else 3)
    with pytest.raises(CheckpointError, match="epoch_pairs"):
        longer.check_identity(plain.identity())
    shorter = PairSampler(owners, 5, seed=1, one_caption=one_caption, epoch_pairs=7)
    assert [len(batch) for batch in shorter.epoch_batches(0)] == [5]
