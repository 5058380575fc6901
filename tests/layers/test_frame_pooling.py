"""X-Pool against a loop, and what its mask and start promise."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from eaglenet.layers.frame_pooling import FramePooling
from reference.eaglenet_reference import pool_frames

TEXTS, VIDEOS, FRAMES, DIM = 2, 3, 4, 5


def build() -> FramePooling:
    pooling = FramePooling(DIM, dropout=0.3).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in pooling.parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return pooling


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    text = torch.randn(TEXTS, VIDEOS, DIM, dtype=torch.float64, generator=generator)
    frames = torch.randn(VIDEOS, FRAMES, DIM, dtype=torch.float64, generator=generator)
    mask = torch.tensor([[True] * 4, [True, True, False, False], [False, True, True, True]])
    return text.requires_grad_(), frames.requires_grad_(), mask


def test_pooling_and_gradients_equal_the_loop() -> None:
    """The loop adds a key bias: it changes nothing, so the layer has none."""
    pooling = build()
    text, frames, mask = inputs()
    ours = pooling(text, frames, mask)
    loop = torch.stack(
        [
            torch.stack(
                [pool_frames(pooling, text[t, v], frames[v], mask[v]) for v in range(VIDEOS)]
            )
            for t in range(TEXTS)
        ]
    )
    assert_close(ours, loop)
    inputs_and_weights = [text, frames, *pooling.parameters()]
    cotangent = torch.randn(ours.shape, dtype=torch.float64)
    gradients = torch.autograd.grad((ours * cotangent).sum(), inputs_and_weights)
    expected = torch.autograd.grad((loop * cotangent).sum(), inputs_and_weights)
    for one, other in zip(gradients, expected, strict=True):
        assert_close(one, other)
        assert one.abs().max() > 1e-9


def test_one_text_for_all_videos_is_the_same_as_repeating_it() -> None:
    pooling = build()
    text, frames, mask = inputs()
    texts_of_videos = text[:, :1].expand(-1, VIDEOS, -1)
    assert_close(pooling(text[:, 0], frames, mask), pooling(texts_of_videos, frames, mask))


def test_pooling_starts_as_plain_attention() -> None:
    pooling = FramePooling(DIM)
    for name in ("query", "key", "value", "output", "feed_forward"):
        layer = getattr(pooling, name)
        assert_close(layer.weight, torch.eye(DIM))
        assert layer.bias is None or not layer.bias.any()


def test_padded_frames_do_not_change_the_video() -> None:
    pooling = build()
    text, frames, mask = inputs()
    other_frames = frames.detach().clone()
    other_frames[~mask] = 1e4
    assert_close(pooling(text, other_frames, mask), pooling(text, frames, mask))


def test_a_video_without_frames_is_finite() -> None:
    text, frames, mask = inputs()
    assert build()(text, frames, torch.zeros_like(mask)).isfinite().all()


def test_dropout_works_in_training_only() -> None:
    pooling = build()
    text, frames, _ = inputs()
    assert_close(pooling(text, frames), pooling(text, frames), atol=0, rtol=0)
    pooling.train()
    torch.manual_seed(0)
    assert not torch.equal(pooling(text, frames), pooling(text, frames))
