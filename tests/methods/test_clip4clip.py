"""CLIP4Clip's four heads equal loops written from their formulas."""

from __future__ import annotations

import pytest
import torch
from double_precision import EXACT, VIDEOS, build, frames_of, matrix, sentences_of, texts, videos

from eaglenet.errors import ConfigError
from eaglenet.layers.temporal_transformer import copy_text_tower
from eaglenet.methods.clip4clip import CLIP4Clip, CLIP4ClipConfig
from eaglenet.types import TextFeatures, VideoFeatures
from reference import clip4clip as reference
from reference.arithmetic import contrastive, weights_of

TRANSFORMER = {"num_heads": 2, "num_layers": 2}


def test_the_mean_head_has_no_parameters_of_its_own() -> None:
    method = build("clip4clip")
    names = [name for name, _ in method.named_parameters() if not name.startswith("encoder.")]
    assert names == ["loss.logit_scale"]


def test_mean_pooling_of_two_frames_by_hand() -> None:
    method = build("clip4clip")
    sentence = torch.zeros(1, 8, dtype=torch.float64)
    sentence[0, 0] = 3.0
    frames = torch.zeros(1, 3, 8, dtype=torch.float64)
    frames[0, 0, 0], frames[0, 1, 1], frames[0, 2, 0] = 5.0, 0.1, -7.0
    mask = torch.tensor([[True, True, False]])
    score = method.score(TextFeatures(sentence), VideoFeatures(frames, mask))
    # unit((1, 1) / 2) against (1, 0); the frames' lengths do not matter, nor does the third.
    torch.testing.assert_close(score.item(), 0.5**0.5)


@pytest.mark.parametrize("head", ["mean", "lstm", "transformer", "tight"])
@torch.no_grad()
def test_the_score_equals_the_loops(head: str) -> None:
    method = build("clip4clip", head=head, **TRANSFORMER)
    text, video = texts(), videos()
    expected = []
    for sentence in sentences_of(text):
        row = []
        for frames in frames_of(video):
            if head == "mean":
                row.append(reference.loose_similarity(sentence, frames))
                continue
            weights = weights_of(method.head)  # type: ignore[arg-type]
            if head == "tight":
                row.append(reference.tight_similarity(sentence, frames, weights, **TRANSFORMER))
            elif head == "lstm":
                frames = reference.sequence_lstm(frames, weights)
                row.append(reference.loose_similarity(sentence, frames))
            else:
                frames = reference.sequence_transformer(frames, weights, **TRANSFORMER)
                row.append(reference.loose_similarity(sentence, frames))
        expected.append(row)
    torch.testing.assert_close(method.score(text, video), matrix(expected), **EXACT)
    encoded = method.encode_video(video)
    torch.testing.assert_close(method.score(text, encoded), matrix(expected), **EXACT)


@pytest.mark.parametrize("head", ["mean", "lstm", "transformer", "tight"])
@torch.no_grad()
def test_the_loss_of_every_head_equals_the_loops(head: str) -> None:
    """The cross encoder's score is a logit already: its scale is 1."""
    method = build("clip4clip", head=head, **TRANSFORMER)
    text, video = texts(VIDEOS), videos()
    losses = method.losses(text, video, torch.eye(VIDEOS, dtype=torch.bool))
    scale = 1.0 if head == "tight" else float(method.loss.scale())  # type: ignore[operator,union-attr]
    expected = contrastive(method.score(text, video).numpy(), scale)
    torch.testing.assert_close(losses.total.item(), expected)


@torch.no_grad()
def test_the_number_of_pairs_at_once_changes_nothing() -> None:
    whole = build("clip4clip", head="tight", num_layers=1)
    parts = build("clip4clip", head="tight", num_layers=1, pairs_at_once=4)
    torch.testing.assert_close(
        whole.score(texts(), videos()), parts.score(texts(), videos()), **EXACT
    )


def test_temporal_blocks_start_from_the_text_tower() -> None:
    from small_towers import small_clip

    from eaglenet.methods import METHODS

    spec = METHODS["clip4clip"]
    encoder = small_clip()
    method = spec.build(spec.config_class(head="transformer", num_layers=2), encoder)
    assert isinstance(method, CLIP4Clip)
    block = method.head.stack.blocks[1]  # type: ignore[union-attr]
    source = encoder.text.blocks[1]
    assert torch.equal(block.in_projection.weight, source.attention.qkv.weight)
    assert torch.equal(block.contract.bias, source.mlp.down.bias)
    positions = method.head.stack.positions  # type: ignore[union-attr]
    assert torch.equal(positions[:40], encoder.text.positional_embedding)


def test_an_encoder_without_a_text_tower_leaves_the_stack_alone() -> None:
    method = build("clip4clip", head="transformer", num_layers=1)
    before = weights_of(method.head)  # type: ignore[arg-type]
    assert not copy_text_tower(method.encoder, method.head.stack)  # type: ignore[union-attr]
    after = weights_of(method.head)  # type: ignore[arg-type]
    assert all((before[name] == after[name]).all() for name in before)


def test_an_unknown_head_names_the_known_ones() -> None:
    config = CLIP4ClipConfig()
    # Past the shape checker of the tests, which refuses it first.
    object.__setattr__(config, "head", "max")
    with pytest.raises(ConfigError, match="mean, lstm, transformer, tight"):
        config.__post_init__()


def test_more_frames_than_positions_are_refused() -> None:
    method = build("clip4clip", head="transformer", num_layers=1, num_positions=3)
    with pytest.raises(ConfigError, match="4 tokens were given, but there are positions for 3"):
        method.encode_video(videos())
