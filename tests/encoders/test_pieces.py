"""Frames that are encoded in chunks, in several threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from eaglenet.encoders import base
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Set the number of threads of torch; restore it after the test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def compact() -> CompactEncoder:
    vision = CompactVisionConfig(28, 7, width=24, layers=2, heads=2, mlp_width=40)
    text = CompactTextConfig(vocabulary_size=50, width=24, layers=1, heads=2, mlp_width=40)
    return CompactEncoder(CompactConfig(dim=20, vision=vision, text=text), seed=3).eval()


def clip() -> ClipEncoder:
    vision = VisionConfig(image_size=28, patch_size=7, width=24, layers=3, heads=2, mlp_width=40)
    text = TextConfig(vocabulary_size=50, context_length=8, width=24, layers=1, heads=2)
    return ClipEncoder(ClipConfig(dim=20, vision=vision, text=text), seed=5).eval()


def videos(count: int, frames: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    pixels = torch.randint(0, 256, (count, frames, 3, 28, 28), generator=generator)
    mask = torch.rand(count, frames, generator=generator) < 0.7
    mask[:, 0] = True
    return pixels.to(torch.uint8), mask


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("frames", [1, 5, 7, 26])
def test_pieces_give_what_all_frames_at_once_give(threads: int, count: int, frames: int) -> None:
    pixels, mask = videos(count, frames)
    for encoder in (compact(), clip()):
        with torch.inference_mode():
            actual = encoder.encode_frames(pixels, mask)
            whole = encoder._read_frames(pixels, mask, patches=False)
        is_real = mask[..., None, None]
        # Products with another number of rows sum in another order.
        torch.testing.assert_close(actual * is_real, whole * is_real, rtol=1e-4, atol=1e-5)


def test_a_video_is_never_cut_where_its_frames_see_each_other(threads: int) -> None:
    encoder = clip()
    encoder.set_token_shift((0, 2))
    pixels, mask = videos(5, 7)
    with torch.no_grad():
        actual = encoder.encode_frames(pixels, mask)
        apart = [encoder.encode_frames(pixels[i : i + 1], mask[i : i + 1]) for i in range(5)]
    torch.testing.assert_close(actual, torch.cat(apart), rtol=1e-4, atol=1e-5)


def test_a_piece_is_small_and_torch_has_one_thread_in_each(threads: int) -> None:
    calls: list[tuple[int, int, str]] = []

    def read(frames: Tensor, mask: Tensor | None) -> Tensor:
        calls.append((frames.shape[0], torch.get_num_threads(), threading.current_thread().name))
        assert torch.is_inference_mode_enabled()
        return frames[:, :, 0, 0, :1, None].float()

    pixels, mask = videos(19, 5)
    with torch.inference_mode():
        actual = base.encode_in_chunks(read, pixels, mask)
    assert torch.equal(actual, pixels[:, :, 0, 0, :1, None].float())
    assert max(count for count, _, _ in calls) * 5 <= base.CHUNK_FRAMES
    assert {number for _, number, _ in calls} == {1}
    assert all(name.startswith("chunks") for _, _, name in calls) == (threads > 1)
    assert torch.get_num_threads() == threads


def test_gradients_are_of_one_pass_over_all_frames(threads: int) -> None:
    calls = []

    def read(frames: Tensor, mask: Tensor | None) -> Tensor:
        calls.append(len(frames))
        return frames[:, :, 0, 0, :1, None].float()

    base.encode_in_chunks(read, videos(19, 5)[0], None)
    assert calls == [19]
