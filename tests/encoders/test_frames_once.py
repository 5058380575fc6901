"""A frame that is shown again costs nothing, and gives what it would by itself."""

from __future__ import annotations

from unittest.mock import patch

import torch
from test_pieces import clip, compact
from torch import Tensor

from eaglenet.core.types import Clips
from eaglenet.encoders.base import TowerEncoder, _first_occurrences


def overlapping() -> Tensor:
    """Four videos of five frames, three of them new in each; the last is the first again."""
    generator = torch.Generator().manual_seed(0)
    film = torch.randint(0, 256, (11, 3, 28, 28), generator=generator).to(torch.uint8)
    three = [film[start : start + 5] for start in (0, 3, 6)]
    return torch.stack([*three, three[0]])


def encoded(encoder: TowerEncoder, frames: Tensor) -> tuple[Tensor, int]:
    """Frames, and how many went through the tower."""
    clips = Clips(frames, torch.ones(frames.shape[:2], dtype=torch.bool), torch.zeros(4, 5))
    given = []
    read = encoder._read_frames

    def count(part: Tensor, mask: Tensor | None, *, patches: bool) -> Tensor:
        given.append(part.shape[0] * part.shape[1])
        return read(part, mask, patches=patches)

    with torch.inference_mode(), patch.object(encoder, "_read_frames", count):
        return encoder.encode_video(clips).frames, sum(given)


def test_frames_that_neighbours_share_are_encoded_once() -> None:
    frames = overlapping()
    for encoder in (compact(), clip()):
        found, count = encoded(encoder, frames)
        # The fourth video shares nothing with the third: what lies far back is not looked for.
        assert count == 5 + 3 + 3 + 5
        alone = torch.cat([encoder._read_frames(frame[None, None], None, patches=False)
                           for frame in frames.flatten(0, 1)])  # fmt: skip
        # Sums of another order where other frames are beside one.
        torch.testing.assert_close(found.flatten(0, 1), alone[:, 0, 0].detach())


def test_frames_that_differ_outside_their_middle_row_are_told_apart() -> None:
    frames = overlapping()
    frames[1, 0, 0, 3, 3] ^= 1  # was the fourth of the first video
    shown = _first_occurrences(frames)
    assert shown is not None
    assert shown.tolist() == [*range(6), 4, 7, 8, 9, 8, 9, *range(12, 20)]


def test_a_frame_that_stands_still_over_many_videos_is_encoded_once() -> None:
    frames = torch.full((4, 5, 3, 28, 28), 7, dtype=torch.uint8)
    assert encoded(compact(), frames)[1] == 1
    assert _first_occurrences(torch.arange(6).view(2, 3, 1, 1, 1).expand(2, 3, 3, 4, 4)) is None
