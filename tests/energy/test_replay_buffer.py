"""The buffer serves only what was written, in order, and survives a restart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.energy.langevin import ReplayBuffer

PAIRS, FRAMES, DIM, SIZE = 2, 3, 4, 5


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(first: int, count: int = PAIRS) -> tuple[Tensor, Tensor]:
    """Rows filled with first, first + 1, ... (all above 1, so never taken for fresh noise)."""
    values = torch.arange(first, first + count, dtype=torch.float32)
    return values[:, None].expand(-1, DIM), values[:, None, None].expand(-1, FRAMES, DIM)


def drawn_values(buffer: ReplayBuffer, seed: int = 0) -> tuple[set[float], set[float]]:
    texts, frames = buffer.draw(400, generator=generator(seed))
    is_stored_text, is_stored = texts[:, 0] > 1, frames[:, 0, 0] > 1
    return set(texts[is_stored_text, 0].tolist()), set(frames[is_stored, 0, 0].tolist())


def test_an_empty_buffer_serves_fresh_uniform_noise() -> None:
    buffer = ReplayBuffer(SIZE, FRAMES, DIM)
    texts, frames = buffer.draw(500, generator=generator())
    for values in (texts, frames):
        assert -1 <= values.min() < -0.95
        assert 0.95 < values.max() < 1
        assert values.unique().numel() > 1000


def test_rows_never_written_are_never_served() -> None:
    buffer = ReplayBuffer(SIZE, FRAMES, DIM)
    buffer.write(*rows(10))
    assert drawn_values(buffer) == ({10.0, 11.0}, {10.0, 11.0})
    texts, frames = buffer.draw(1000, generator=generator())
    assert (texts.abs().sum(dim=-1) > 0).all()
    assert (frames.abs().sum(dim=-1) > 0).all()


def test_the_newest_rows_replace_the_oldest() -> None:
    buffer = ReplayBuffer(SIZE, FRAMES, DIM)
    for first in (10, 20, 30, 40):
        buffer.write(*rows(first))
    newest_values = {21.0, 30.0, 31.0, 40.0, 41.0}
    assert drawn_values(buffer) == (newest_values, newest_values)
    buffer.write(*rows(100, count=7))
    newest_values = {102.0, 103.0, 104.0, 105.0, 106.0}
    assert drawn_values(buffer) == (newest_values, newest_values)


def test_about_one_chain_in_twenty_starts_fresh() -> None:
    buffer = ReplayBuffer(SIZE, FRAMES, DIM, fresh_fraction=0.05)
    buffer.write(*rows(10))
    texts, _ = buffer.draw(20000, generator=generator())
    fresh = (texts[:, 0] < 2).float().mean()
    assert 0.045 < fresh < 0.055


@pytest.mark.parametrize(("rows_option", "together"), [("independent", False), ("joint", True)])
def test_text_and_frames_come_from_the_same_row_only_when_joint(
    rows_option: Any, together: bool
) -> None:
    buffer = ReplayBuffer(SIZE, FRAMES, DIM, rows=rows_option, fresh_fraction=0.0)
    buffer.write(*rows(10, count=SIZE))
    texts, frames = buffer.draw(50, generator=generator())
    assert torch.equal(texts[:, 0], frames[:, 0, 0]) == together


def test_the_released_code_starts_a_fixed_number_fresh_and_takes_no_row_twice() -> None:
    """Of 64 chains floor(0.95 * 64) = 60 start at different stored rows, 4 fresh."""
    buffer = ReplayBuffer(100, FRAMES, DIM, rows="joint", fresh="released")
    buffer.write(*rows(10, count=70))
    for seed in range(3):
        texts, frames = buffer.draw(64, generator=generator(seed))
        is_stored = texts[:, 0] > 1
        assert is_stored.sum() == 60
        assert texts[is_stored, 0].unique().numel() == 60
        assert torch.equal(texts[is_stored, 0], frames[is_stored, 0, 0])
    few = ReplayBuffer(100, FRAMES, DIM, rows="joint", fresh="released")
    few.write(*rows(10, count=3))
    texts, _ = few.draw(64, generator=generator())
    assert texts[:60, 0].unique().tolist() == [10.0, 11.0, 12.0]


def test_a_resumed_buffer_continues_where_it_was() -> None:
    buffer = ReplayBuffer(SIZE, FRAMES, DIM)
    for first in (10, 20, 30):
        buffer.write(*rows(first))
    other_buffer = ReplayBuffer(SIZE, FRAMES, DIM)
    other_buffer.load_state_dict(buffer.state_dict())
    for one in (buffer, other_buffer):
        one.write(*rows(40))
    ours, theirs = (
        buffer.draw(30, generator=generator(1)),
        other_buffer.draw(30, generator=generator(1)),
    )
    assert torch.equal(ours[0], theirs[0])
    assert torch.equal(ours[1], theirs[1])
    assert drawn_values(other_buffer)[0] == {21.0, 30.0, 31.0, 40.0, 41.0}


def test_fresh_rows_of_the_released_code_lose_their_sign_once_something_is_stored() -> None:
    buffer = ReplayBuffer(4, 3, 5, fresh_fraction=1.0, rows="joint", fresh="released")
    generator = torch.Generator().manual_seed(0)
    texts, frames = buffer.draw(64, generator=generator)
    assert texts.min() < -0.5
    assert frames.min() < -0.5
    buffer.write(texts[:2], frames[:2])
    texts, frames = buffer.draw(64, generator=generator)
    assert texts.min() >= 0
    assert frames.min() >= 0
