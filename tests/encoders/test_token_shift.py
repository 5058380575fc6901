"""Token shift, compared with a loop that follows its description."""

from __future__ import annotations

import pytest
import torch

from eaglenet.core.errors import ConfigError
from eaglenet.encoders.blocks import shift_stride, shift_tokens
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig

VIDEOS, FRAMES, WIDTH = 2, 5, 3


def shift_by_loop(videos: torch.Tensor) -> torch.Tensor:
    num_videos, num_frames, num_tokens, _ = videos.shape
    stride = num_tokens // 7
    back = {1 + k * stride for k in range(num_tokens) if 1 + k * stride < num_tokens}
    forward = {4 + k * stride for k in range(num_tokens) if 4 + k * stride < num_tokens}
    result = videos.clone()
    for video in range(num_videos):
        for frame in range(num_frames):
            for token in range(num_tokens):
                if token in back and frame > 0:
                    result[video, frame, token] = videos[video, frame - 1, token]
                if token in forward and frame < num_frames - 1:
                    result[video, frame, token] = videos[video, frame + 1, token]
    return result


@pytest.mark.parametrize("num_tokens", [17, 50, 197, 257])
def test_shifted_tokens_equal_the_loop(num_tokens: int) -> None:
    generator = torch.Generator().manual_seed(num_tokens)
    videos = torch.randn(VIDEOS, FRAMES, num_tokens, WIDTH, generator=generator)
    result = shift_tokens(videos.flatten(0, 1), FRAMES).unflatten(0, (VIDEOS, FRAMES))
    assert torch.equal(result, shift_by_loop(videos))
    assert torch.equal(result[:, :, 0], videos[:, :, 0])


@pytest.mark.parametrize(("num_tokens", "stride"), [(50, 7), (197, 28), (257, 36)])
def test_the_released_towers_move_fourteen_patches_or_so(num_tokens: int, stride: int) -> None:
    assert shift_stride(num_tokens) == stride
    frames = torch.arange(3.0)[:, None, None].expand(3, num_tokens, 1)
    middle = shift_tokens(frames, 3)[1, :, 0]
    assert (middle == 0).sum() == len(range(1, num_tokens, stride))
    assert (middle == 2).sum() == len(range(4, num_tokens, stride))


def test_one_frame_is_left_alone() -> None:
    tokens = torch.randn(VIDEOS, 50, WIDTH, generator=torch.Generator().manual_seed(1))
    assert torch.equal(shift_tokens(tokens, 1), tokens)


def test_gradients_reach_the_frame_a_token_came_from() -> None:
    tokens = torch.randn(
        FRAMES, 50, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    ).requires_grad_()
    shift_tokens(tokens, FRAMES)[2, 1].sum().backward()
    assert tokens.grad[1, 1].eq(1).all()
    assert tokens.grad[2].eq(0).all()


def small_encoder(image_size: int = 48) -> ClipEncoder:
    vision = VisionConfig(
        image_size=image_size, patch_size=16, width=24, layers=3, heads=2, mlp_width=40
    )
    text = TextConfig(vocabulary_size=50, width=12, layers=1, heads=2, mlp_width=20)
    return ClipEncoder(ClipConfig(dim=20, vision=vision, text=text)).eval()


@torch.no_grad()
def test_only_the_attention_of_the_named_blocks_sees_shifted_tokens() -> None:
    encoder = small_encoder()
    pixels = torch.randn(VIDEOS, FRAMES, 3, 48, 48, generator=torch.Generator().manual_seed(4))
    plain = encoder.encode_frames(pixels, patches=True)
    encoder.set_token_shift((1,))
    result = encoder.encode_frames(pixels, patches=True)
    block = encoder.vision.blocks[1]
    tokens = encoder.vision.blocks[0](encoder.vision.embed(pixels.flatten(0, 1)))
    attention_output = tokens + block.attention(shift_tokens(block.ln_1(tokens), FRAMES))
    attention_output = attention_output + block.mlp(block.ln_2(attention_output))
    expected = encoder.vision.project(encoder.vision.blocks[2](attention_output))
    torch.testing.assert_close(result.flatten(0, 1), expected)
    assert not torch.allclose(plain, result)
    encoder.set_token_shift(())
    assert torch.equal(encoder.encode_frames(pixels, patches=True), plain)


@torch.no_grad()
def test_videos_of_a_batch_do_not_see_each_other() -> None:
    encoder = small_encoder()
    encoder.set_token_shift((1, 2))
    pixels = torch.randn(VIDEOS, FRAMES, 3, 48, 48, generator=torch.Generator().manual_seed(6))
    together = encoder.encode_frames(pixels)
    torch.testing.assert_close(encoder.encode_frames(pixels[1:]), together[1:])


def test_impossible_shifts_are_refused() -> None:
    with pytest.raises(ConfigError, match="blocks 0 to 2"):
        small_encoder().set_token_shift((2, 3))
    with pytest.raises(ConfigError, match="at least 7 tokens"):
        small_encoder(image_size=32).set_token_shift((1,))
    with pytest.raises(ConfigError, match="whole videos of 3 frames"):
        shift_tokens(torch.zeros(4, 50, WIDTH), 3)
