"""Features of the released code, reproduced from its checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.core.types import Tokens
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.weight_names import clip_config, from_openai
from golden_checkpoint import (
    GOLDEN_NAMES,
    TOLERANCE,
    golden_inputs,
    golden_weights,
    load_golden,
)

PREFIX = "clip."


@pytest.fixture(scope="module", params=GOLDEN_NAMES)
def golden(request: pytest.FixtureRequest) -> tuple[ClipEncoder, Any, dict[str, Tensor]]:
    """Return the authors' towers, their inputs, and their outputs."""
    weights = {
        name[len(PREFIX) :]: value
        for name, value in golden_weights(request.param).items()
        if name.startswith(PREFIX)
    }
    config = clip_config(from_openai(weights))
    encoder = ClipEncoder(config).eval()
    encoder.load_state_dict(from_openai(weights))
    encoder.set_token_shift((10, 11))
    return encoder, golden_inputs(request.param), load_golden(request.param)


@torch.no_grad()
def test_text_features_equal_the_released_code(
    golden: tuple[ClipEncoder, Any, dict[str, Tensor]],
) -> None:
    encoder, inputs, expected = golden
    tokens = Tokens(inputs.token_ids, inputs.token_ids != 0)
    sentence = encoder.encode_text(tokens).sentence
    torch.testing.assert_close(sentence, expected["text_features"], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_frame_features_with_token_shift_equal_the_released_code(
    golden: tuple[ClipEncoder, Any, dict[str, Tensor]],
) -> None:
    encoder, inputs, expected = golden
    frames = encoder.encode_frames(inputs.pixels)[:, :, 0]
    torch.testing.assert_close(frames, expected["frame_features"], atol=TOLERANCE, rtol=0)
    every_token = encoder.encode_frames(inputs.pixels, patches=True)[:, :, 0]
    torch.testing.assert_close(every_token, expected["frame_features"], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def test_without_token_shift_the_features_are_others(
    golden: tuple[ClipEncoder, Any, dict[str, Tensor]],
) -> None:
    encoder, inputs, expected = golden
    encoder.set_token_shift(())
    frames = encoder.encode_frames(inputs.pixels[:1])[:, :, 0]
    encoder.set_token_shift((10, 11))
    assert (frames - expected["frame_features"][:1]).abs().max() > 0.01
