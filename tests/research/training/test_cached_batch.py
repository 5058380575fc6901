"""A batch encoded in pieces has the loss and gradients of the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eaglenet.core.types import Losses, PairBatch, TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNetConfig
from eaglenet.research.training.config import TrainingConfig
from eaglenet.research.training.distributed import World
from eaglenet.research.training.step import (
    FiniteWatch,
    split_batch,
    training_losses,
)
from tiny import DIM, FRAME_DIM, FRAMES, TEXT_DIM

PAIRS = 13


def make_method(dtype: torch.dtype) -> Method:
    torch.manual_seed(0)
    config = EagleNetConfig(dim=DIM, num_frames=FRAMES, num_candidates=2, langevin_steps=2)
    encoder = FeatureEncoder(FeatureConfig(TEXT_DIM, FRAME_DIM, DIM))
    return METHODS["eaglenet"].build(config, encoder).to(dtype).train()


def make_batch(dtype: torch.dtype) -> PairBatch:
    generator = torch.Generator().manual_seed(1)
    mask = torch.rand(PAIRS, FRAMES, generator=generator) < 0.8
    mask[:, 0] = True
    ids = torch.arange(PAIRS)
    ids[3] = 2  # two captions of one video
    return PairBatch(
        TextFeatures(torch.randn(PAIRS, TEXT_DIM, generator=generator).to(dtype)),
        VideoFeatures(torch.randn(PAIRS, FRAMES, FRAME_DIM, generator=generator).to(dtype), mask),
        ids,
    )


def losses_and_gradients(
    dtype: torch.dtype, **options: int | str
) -> tuple[Losses, dict[str, Tensor], Method]:
    method = make_method(dtype)
    losses = training_losses(method, make_batch(dtype), TrainingConfig(**options), World(), seed=5)
    gradients = {
        name: value.grad for name, value in method.named_parameters() if value.grad is not None
    }
    return losses, gradients, method


@pytest.mark.parametrize("pieces", [2, 5, PAIRS])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 2e-6)])
def test_pieces_give_the_loss_and_gradients_of_the_whole(
    pieces: int, dtype: torch.dtype, tolerance: float
) -> None:
    whole, expected, _ = losses_and_gradients(dtype)
    cut, gradients, _ = losses_and_gradients(dtype, accumulate=pieces)
    torch.testing.assert_close(cut.total, whole.total, rtol=tolerance, atol=tolerance)
    assert set(gradients) == set(expected)
    for name, value in expected.items():
        # Relative to the tensor: fp32 sums the pieces in another order.
        error = (gradients[name] - value).norm() / value.norm().clamp_min(1e-12)
        assert error <= tolerance, f"{name}: {error:.1e}"


def test_pieces_leave_the_replay_buffer_as_the_whole_does() -> None:
    _, _, whole = losses_and_gradients(torch.float64)
    _, _, cut = losses_and_gradients(torch.float64, accumulate=4)
    for name, value in whole.named_buffers():
        torch.testing.assert_close(dict(cut.named_buffers())[name], value, msg=name)


def test_splitting_instead_sees_fewer_negatives() -> None:
    whole, _, _ = losses_and_gradients(torch.float64)
    split, _, _ = losses_and_gradients(torch.float64, accumulate=4, accumulation="split")
    assert (split.total - whole.total).abs() > 1e-3


def test_dropout_in_the_encoder_is_replayed_in_the_second_pass() -> None:
    seen = []

    class Recorder(nn.Dropout):
        def forward(self, value: Any) -> Any:
            result = super().forward(value)
            seen.append(result.detach().clone())
            return result

    method = make_method(torch.float64)
    method.encoder.text.dropout = Recorder(0.5)
    training_losses(method, make_batch(torch.float64), TrainingConfig(accumulate=3), World())
    assert len(seen) == 6
    for first, second in zip(seen[:3], seen[3:], strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    assert not torch.equal(seen[0][:4] == 0, seen[1][:4] == 0)


def test_a_batch_is_cut_into_nearly_equal_pieces() -> None:
    pieces = split_batch(make_batch(torch.float32), 4)
    assert [len(piece.video_ids) for piece in pieces] == [4, 3, 3, 3]


def test_a_term_that_is_not_finite_is_named_with_its_step() -> None:
    from eaglenet.core.errors import NonFiniteError

    watch = FiniteWatch(torch.device("cpu"))
    good, bad = torch.tensor(1.0), torch.tensor(float("nan"))
    watch.record(0, {"enriched": good, "energy": good})
    watch.record(1, {"enriched": good, "energy": bad})
    watch.record(2, {"enriched": bad, "energy": bad})
    with pytest.raises(NonFiniteError, match="energy became NaN or infinite at step 1"):
        watch.check()


def test_bf16_autocast_gives_features_in_fp32_and_nearly_the_same_loss() -> None:
    plain, _, _ = losses_and_gradients(torch.float32)
    fast, gradients, _ = losses_and_gradients(torch.float32, precision="bf16")
    assert all(value.dtype == torch.float32 for value in gradients.values())
    torch.testing.assert_close(fast.total, plain.total, rtol=2e-2, atol=0)
