"""The compact towers: their properties, and parity with the towers that they start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eaglenet.core.errors import ConfigError
from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.blocks import shift_tokens
from eaglenet.encoders.compact import (
    CompactConfig,
    CompactEncoder,
    CompactTextConfig,
    CompactVisionConfig,
)
from eaglenet.research.small.run import load_initial_weights

WIDTH, HEADS, HIDDEN = 24, 2, 48


def make_encoder(patch_size: int = 7) -> CompactEncoder:
    """Return an encoder of frames with 28 pixels in 4 x 4 patches, 3 blocks, 40 tokens."""
    vision = CompactVisionConfig(28, patch_size, WIDTH, 3, HEADS, HIDDEN)
    text = CompactTextConfig(40, 12, WIDTH, 2, HEADS, HIDDEN)
    return CompactEncoder(CompactConfig(16, vision, text), seed=3).eval()


def test_a_frame_is_the_mean_of_its_places() -> None:
    encoder = make_encoder()
    frames = torch.randint(0, 256, (2, 3, 3, 28, 28), dtype=torch.uint8)
    clips = Clips(frames, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3))
    with torch.no_grad():
        plain = encoder.encode_video(clips)
        details = encoder.encode_video(clips, patches=True)
    assert details.patches is not None
    assert details.patches.shape == (2, 3, 1 + 16, 16)
    torch.testing.assert_close(details.frames, plain.frames)
    torch.testing.assert_close(details.patches[:, :, 1:].mean(dim=2), plain.frames)


def test_a_sentence_is_the_mean_of_its_words_and_padding_changes_nothing() -> None:
    encoder = make_encoder()
    ids = torch.tensor([[1, 5, 9, 2, 0, 0, 0], [1, 7, 2, 0, 0, 0, 0]])
    tokens = Tokens(ids, ids != 0)
    with torch.no_grad():
        details = encoder.encode_text(tokens, words=True)
        plain = encoder.encode_text(tokens)
        alone = encoder.encode_text(Tokens(ids[1:, :3], ids[1:, :3] != 0))
    assert details.words is not None
    torch.testing.assert_close(plain.sentence, details.sentence)
    torch.testing.assert_close(details.words[0, :4].mean(dim=0), plain.sentence[0])
    torch.testing.assert_close(alone.sentence[0], plain.sentence[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_size": 30}, "not a multiple"),
        ({"heads": 5}, "multiple of heads"),
    ],
)
def test_impossible_shapes_are_refused(change: dict[str, int], message: str) -> None:
    values = {
        "image_size": 28,
        "patch_size": 7,
        "width": 24,
        "layers": 3,
        "heads": 2,
        "mlp_width": 8,
    }
    with pytest.raises(ConfigError, match=message):
        CompactVisionConfig(**{**values, **change})


def test_it_starts_as_dinov2_and_bert(tmp_path: Path) -> None:
    """Without pooling, the towers equal those of transformers from which they start."""
    from transformers import BertConfig, BertModel, Dinov2Config, Dinov2Model

    torch.manual_seed(0)
    vision = Dinov2Model(
        Dinov2Config(
            hidden_size=WIDTH,
            num_hidden_layers=3,
            num_attention_heads=HEADS,
            mlp_ratio=2,
            image_size=28,
            patch_size=7,
        )
    ).eval()
    text = BertModel(
        BertConfig(
            vocab_size=40,
            hidden_size=WIDTH,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            intermediate_size=HIDDEN,
            max_position_embeddings=20,
        ),
        add_pooling_layer=False,
    ).eval()
    for name, model in (("vision", vision), ("text", text)):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        model.save_pretrained(tmp_path / name)
    encoder = make_encoder()
    load_initial_weights(encoder, tmp_path / "vision", tmp_path / "text")

    pixels = torch.randn(2, 3, 28, 28)
    ids = torch.tensor([[1, 5, 9, 2], [1, 7, 2, 0]])
    with torch.no_grad():
        expected = vision(pixels).last_hidden_state
        ours = encoder.vision(pixels)[:, 0]
        both = torch.cat([expected[:, 0], expected[:, 1:].mean(dim=1)], dim=-1)
        torch.testing.assert_close(ours, encoder.vision.projection(both), rtol=1e-4, atol=1e-5)
        states = text(input_ids=ids, attention_mask=(ids != 0).long()).last_hidden_state
        real = ids != 0
        torch.testing.assert_close(
            encoder.text.states(ids, real)[real], states[real], rtol=1e-4, atol=1e-5
        )


@torch.no_grad()
def test_only_the_attention_of_shifted_blocks_sees_neighbouring_frames() -> None:
    """No token moves out of a padded frame, which a CPU must then encode, too."""
    encoder = make_encoder()
    frames = torch.randint(0, 256, (2, 3, 3, 28, 28), dtype=torch.uint8)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    plain = encoder.encode_frames(frames, mask)
    encoder.set_token_shift((1,))
    tower = encoder.vision
    first, second, third = tower.blocks
    tokens = first(tower.embed(frames.flatten(0, 1)))
    attention_output = second.attention(shift_tokens(second.ln_1(tokens), 3, mask))
    tokens = tower.norm(third(second.finish(tokens, attention_output)))
    both = torch.cat([tokens[:, 0], tokens[:, 1:].mean(dim=1)], dim=-1)
    expected = tower.projection(both).unflatten(0, (2, 3))
    torch.testing.assert_close(encoder.encode_frames(frames, mask)[:, :, 0][mask], expected[mask])
    assert not torch.allclose(encoder.encode_frames(frames, mask), plain)
    with pytest.raises(ConfigError, match="at least 7 tokens per frame, got 5"):
        make_encoder(patch_size=14).set_token_shift((2,))


@torch.no_grad()
def test_frames_of_merged_patches_have_the_mean_of_whole_frames() -> None:
    tower = make_encoder().vision
    classes, patches = torch.randn(2, 3, WIDTH), torch.randn(2, 4, WIDTH)
    sizes = torch.tensor([[1.0, 2.0, 1.0, 4.0], [3.0, 1.0, 2.0, 2.0]])
    vectors = tower.read_merged(classes, patches, sizes)
    for clip in range(2):
        every = patches[clip].repeat_interleave(sizes[clip].long(), dim=0)
        means = [tower.norm(classes[clip]).mean(dim=0), tower.norm(every).mean(dim=0)]
        torch.testing.assert_close(vectors[clip].mean(dim=0), tower.projection(torch.cat(means)))
