"""Repeated frames are encoded once, with the same result."""

from __future__ import annotations

from unittest.mock import patch

import torch
from test_pieces import clip, compact
from torch import Tensor

from eaglenet.core.types import Clips
from eaglenet.encoders.base import TowerEncoder, _first_occurrences


def overlapping() -> Tensor:
    """Return four videos of five frames, three of them new; the last one equals the first."""
    generator = torch.Generator().manual_seed(0)
    film = torch.randint(0, 256, (11, 3, 28, 28), generator=generator).to(torch.uint8)
    three = [film[start : start + 5] for start in (0, 3, 6)]
    return torch.stack([*three, three[0]])


def encode_and_count(encoder: TowerEncoder, frames: Tensor) -> tuple[Tensor, int]:
    """Return encoded frames, and the number that the tower has encoded."""
    clips = Clips(frames, torch.ones(frames.shape[:2], dtype=torch.bool), torch.zeros(4, 5))
    calls = []
    read = encoder._read_frames

    def count(part: Tensor, mask: Tensor | None, *, patches: bool) -> Tensor:
        calls.append(part.shape[0] * part.shape[1])
        return read(part, mask, patches=patches)

    with torch.inference_mode(), patch.object(encoder, "_read_frames", count):
        return encoder.encode_video(clips).frames, sum(calls)


def test_frames_that_neighbours_share_are_encoded_once() -> None:
    frames = overlapping()
    for encoder in (compact(), clip()):
        features, count = encode_and_count(encoder, frames)
        # The fourth video shares no frame with the third; earlier ones are not searched.
        assert count == 5 + 3 + 3 + 5
        alone = torch.cat([encoder._read_frames(frame[None, None], None, patches=False)
                           for frame in frames.flatten(0, 1)])  # fmt: skip
        # Other frames in the batch change the order of sums.
        torch.testing.assert_close(features.flatten(0, 1), alone[:, 0, 0].detach())


def test_frames_that_differ_outside_their_middle_row_are_told_apart() -> None:
    frames = overlapping()
    frames[1, 0, 0, 3, 3] ^= 1  # It was the fourth frame of the first video.
    first_indices = _first_occurrences(frames)
    assert first_indices is not None
    assert first_indices.tolist() == [*range(6), 4, 7, 8, 9, 8, 9, *range(12, 20)]


def test_a_frame_that_stands_still_over_many_videos_is_encoded_once() -> None:
    frames = torch.full((4, 5, 3, 28, 28), 7, dtype=torch.uint8)
    assert encode_and_count(compact(), frames)[1] == 1
    assert _first_occurrences(torch.arange(6).view(2, 3, 1, 1, 1).expand(2, 3, 3, 4, 4)) is None
