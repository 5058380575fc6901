"""The encoder in training and in use; other tests compare its values with transformers."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.core.settings import from_plain
from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import CLIP_SHAPES, ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.vision import PatchEmbedding
from eaglenet.research.training.optimizer import freeze_parameters

VIDEOS, FRAMES, TEXTS, WORDS, SIZE, DIM = 2, 3, 4, 9, 48, 20
CONFIG = ClipConfig(
    dim=DIM,
    vision=VisionConfig(image_size=SIZE, patch_size=16, width=24, layers=2, heads=3, mlp_width=40),
    text=TextConfig(
        vocabulary_size=60, context_length=11, width=16, layers=2, heads=2, mlp_width=28
    ),
)


@pytest.fixture
def encoder() -> ClipEncoder:
    """Return small towers with random weights."""
    return ClipEncoder(CONFIG).eval()


@pytest.fixture
def clips() -> Clips:
    """Return two videos, one with a padded frame."""
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (VIDEOS, FRAMES, 3, SIZE, SIZE), generator=generator)
    mask = torch.tensor([[True, True, True], [True, False, False]])
    return Clips(frames.to(torch.uint8), mask, torch.zeros(VIDEOS, FRAMES))


@pytest.fixture
def tokens() -> Tokens:
    """Return four texts that end before the last column."""
    ids = torch.randint(1, 58, (TEXTS, WORDS), generator=torch.Generator().manual_seed(2))
    ids[:, 6], ids[:, 7:] = 59, 0
    return Tokens(ids, ids != 0)


def total(encoder: ClipEncoder, clips: Clips, tokens: Tokens) -> torch.Tensor:
    video, text = encoder.encode_video(clips), encoder.encode_text(tokens)
    return video.frames.square().mean() + text.sentence.square().mean()


def test_shapes_and_masks(encoder: ClipEncoder, clips: Clips, tokens: Tokens) -> None:
    video = encoder.encode_video(clips, patches=True)
    assert video.frames.shape == (VIDEOS, FRAMES, DIM)
    assert video.patches.shape == (VIDEOS, FRAMES, 10, DIM)
    assert torch.equal(video.mask, clips.mask)
    assert encoder.encode_video(clips).patches is None
    text = encoder.encode_text(tokens, words=True)
    assert (text.sentence.shape, text.words.shape) == ((TEXTS, DIM), (TEXTS, WORDS, DIM))
    assert encoder.encode_text(tokens).words is None


def test_padding_after_the_end_does_not_change_the_sentence(
    encoder: ClipEncoder, tokens: Tokens
) -> None:
    shorter = Tokens(tokens.ids[:, :7], tokens.mask[:, :7])
    torch.testing.assert_close(
        encoder.encode_text(shorter).sentence, encoder.encode_text(tokens).sentence
    )


def test_empty_batches_give_empty_features(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens
) -> None:
    assert encoder.encode_video(clips[:0]).frames.shape == (0, FRAMES, DIM)
    assert encoder.encode_text(tokens[:0], words=True).words.shape == (0, WORDS, DIM)


def test_patches_as_a_matrix_product_equal_a_convolution() -> None:
    config = VisionConfig(image_size=30, patch_size=7, width=5, heads=1)
    embedding = PatchEmbedding(config, CONFIG.pixel_mean, CONFIG.pixel_std)
    pixels = torch.randn(2, 3, 30, 30, generator=torch.Generator().manual_seed(3))
    kernel = embedding.projection.weight.reshape(5, 3, 7, 7)
    expected = torch.nn.functional.conv2d(pixels, kernel, stride=7).flatten(2).transpose(1, 2)
    torch.testing.assert_close(embedding(pixels), expected)


def test_gradient_checkpointing_changes_nothing_but_memory(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens
) -> None:
    plain, saving = encoder.train(), copy.deepcopy(encoder)
    saving.set_gradient_checkpointing(True)
    saving.set_token_shift((1,))
    plain.set_token_shift((1,))
    for model in (plain, saving):
        total(model, clips, tokens).backward()
    for ours, theirs in zip(plain.parameters(), saving.parameters(), strict=True):
        if theirs.grad is None:
            assert ours.grad is None
            continue
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_every_weight_but_the_scale_gets_a_gradient(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens
) -> None:
    total(encoder, clips, tokens).backward()
    without = [name for name, weight in encoder.named_parameters() if weight.grad is None]
    assert without == ["logit_scale"]


def test_frozen_embeddings_are_what_the_field_freezes(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens
) -> None:
    freeze_parameters(nn.ModuleDict({"encoder": encoder}), "embeddings")
    frozen_names = {name for name, weight in encoder.named_parameters() if not weight.requires_grad}
    assert frozen_names == {
        "vision.patch_embedding.projection.weight",
        "vision.class_embedding",
        "vision.positional_embedding",
        "vision.ln_pre.weight",
        "vision.ln_pre.bias",
        "text.token_embedding.weight",
        "text.positional_embedding",
    }
    encoder.set_gradient_checkpointing(True)
    total(encoder.train(), clips, tokens).backward()
    assert encoder.vision.blocks[0].attention.qkv.weight.grad is not None
    assert encoder.text.blocks[0].attention.qkv.weight.grad is not None


def test_autocast_trains_full_precision_weights(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens
) -> None:
    expected = total(encoder, clips, tokens)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = total(encoder.train(), clips, tokens)
    loss.backward()
    torch.testing.assert_close(loss.float(), expected, rtol=0.05, atol=0)
    assert encoder.text.projection.weight.grad.dtype == torch.float32


COMPILED = """
import copy, torch
from eaglenet.encoders.clip import ClipConfig, ClipEncoder
from eaglenet.core.settings import from_plain
encoder = ClipEncoder(from_plain(ClipConfig, {config})).eval()
compiled = copy.deepcopy(encoder)
compiled.compile(backend="aot_eager")
encoder.set_token_shift((1,)), compiled.set_token_shift((1,))
assert compiled.state_dict().keys() == encoder.state_dict().keys()
frames = torch.randint(0, 256, (2, 3, 3, {size}, {size}), dtype=torch.uint8)
ids = torch.randint(1, 59, (4, 9))
with torch.no_grad():
    for model in ("frames", "words"):
        features = [
            m.encode_frames(frames) if model == "frames" else m.text(ids, words=True)
            for m in (encoder, compiled)
        ]
        torch.testing.assert_close(*features)
"""


@pytest.mark.slow
def test_compiled_towers_give_the_same_features_under_the_same_names() -> None:
    # In another process, since the shape checks of the tests cannot be traced.
    program = COMPILED.format(config=dataclasses.asdict(CONFIG), size=SIZE)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_a_seed_decides_every_weight() -> None:
    first, second, other = (ClipEncoder(CONFIG, seed=seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["text.projection.weight"], other["text.projection.weight"])


def test_inputs_that_do_not_fit_are_refused_with_what_would(
    encoder: ClipEncoder, clips: Clips, tokens: Tokens
) -> None:
    small = Clips(clips.frames[..., :32, :32], clips.mask, clips.seconds)
    with pytest.raises(UsageError, match=r"32 x 32.*48 x 48.*FrameSpec\(size=48\)"):
        encoder.encode_video(small)
    long = Tokens(tokens.ids.repeat(1, 2), tokens.mask.repeat(1, 2))
    with pytest.raises(UsageError, match=r"18 tokens long.*takes 11"):
        encoder.encode_text(long)


def test_configs_survive_json_and_refuse_nonsense() -> None:
    for config in (CONFIG, *CLIP_SHAPES.values()):
        assert from_plain(ClipConfig, json.loads(json.dumps(dataclasses.asdict(config)))) == config
    assert from_plain(ClipConfig, {}) == ClipConfig()
    with pytest.raises(ConfigError, match="depth"):
        from_plain(ClipConfig, {"vision": {"depth": 3}})
    with pytest.raises(ConfigError, match="multiple of heads"):
        VisionConfig(width=50, heads=3)
    with pytest.raises(ConfigError, match="patch_size"):
        VisionConfig(image_size=16, patch_size=32)


def test_the_released_shapes_have_the_released_sizes() -> None:
    with torch.device("meta"):
        sizes = {
            name: sum(weight.numel() for weight in ClipEncoder(config).parameters())
            for name, config in CLIP_SHAPES.items()
        }
    # Parameter counts of OpenAI's models.
    expected = {"ViT-B/32": 151277313, "ViT-B/16": 149620737, "ViT-L/14": 427616513}
    expected["ViT-L/14@336px"] = 427944193
    assert sizes == expected


def test_a_number_recomputes_that_many_visual_blocks(encoder: ClipEncoder) -> None:
    encoder.set_gradient_checkpointing(2)
    assert encoder.vision.gradient_checkpointing == 2
    assert not encoder.text.gradient_checkpointing
    encoder.set_gradient_checkpointing(False)
    assert encoder.vision.gradient_checkpointing == 0


def test_frame_positions_tell_equal_frames_apart(clips: Clips) -> None:
    config = dataclasses.replace(
        CONFIG, vision=dataclasses.replace(CONFIG.vision, frame_positions=FRAMES)
    )
    still = dataclasses.replace(clips, frames=clips.frames[:, :1].expand(-1, FRAMES, -1, -1, -1))
    plain = ClipEncoder(CONFIG).eval().encode_video(still).frames
    torch.testing.assert_close(plain[:, 0], plain[:, 2])
    encoder = ClipEncoder(config).eval()
    vectors = encoder.encode_video(still).frames
    assert (vectors[:, 0] - vectors[:, 2]).abs().max() > 1e-3
    longer = torch.cat([still.frames, still.frames], dim=1)
    with pytest.raises(ConfigError, match="frame_positions"):
        encoder.encode_frames(longer)


def test_the_feed_forward_without_gradients_is_the_one_with_them(encoder: ClipEncoder) -> None:
    block = encoder.vision.blocks[0].mlp
    tokens = torch.randn(2, 5, block.up.in_features)
    expected = block.eval()(tokens).detach()
    with torch.no_grad():
        torch.testing.assert_close(block(tokens), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(block.train()(tokens), expected)


def test_what_stands_after_the_end_is_not_computed(encoder: ClipEncoder, tokens: Tokens) -> None:
    """Without gradients, the tower stops after the longest text, with the same result."""
    widths: list[int] = []
    handle = encoder.text.blocks[0].register_forward_hook(
        lambda module, inputs, output: widths.append(inputs[0].shape[1])
    )
    with torch.no_grad():
        short = encoder.encode_text(tokens).sentence
    whole = encoder.encode_text(tokens).sentence.detach()
    handle.remove()
    longest = int(encoder.text.end_positions(tokens.ids).max()) + 1
    assert widths == [longest, tokens.ids.shape[1]]
    assert longest < tokens.ids.shape[1]
    torch.testing.assert_close(short, whole)


def count_pictures(encoder: ClipEncoder, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of images of each later call of the vision tower."""
    counts: list[int] = []
    forward = encoder.vision.forward

    def count_call(pictures: Tensor, *arguments: Any, **options: Any) -> Tensor:
        counts.append(len(pictures))
        return forward(pictures, *arguments, **options)

    monkeypatch.setattr(encoder.vision, "forward", count_call)
    return counts


@pytest.mark.parametrize("patches", [False, True])
def test_a_video_of_one_picture_costs_one_frame(
    encoder: ClipEncoder, clips: Clips, monkeypatch: pytest.MonkeyPatch, patches: bool
) -> None:
    """An image repeats one frame; batches with other videos keep their order."""
    still = clips.frames[:1, :1].expand(1, FRAMES, -1, -1, -1)
    batch = Clips(
        torch.cat([clips.frames, still]), torch.ones(3, FRAMES, dtype=torch.bool), torch.zeros(3, 3)
    )
    targets = encoder.encode_frames(batch.frames, batch.mask, patches=patches).detach()
    counts = count_pictures(encoder, monkeypatch)
    with torch.no_grad():
        video = encoder.encode_video(batch, patches=patches)
    assert sum(counts) == 2 * FRAMES + 1
    torch.testing.assert_close(video.frames, targets[:, :, 0])
    if patches:
        torch.testing.assert_close(video.patches, targets)
    counts.clear()
    encoder.set_token_shift((1,))
    with torch.no_grad():
        encoder.encode_video(batch, patches=patches)
    assert sum(counts) == 3 * FRAMES, "a frame there depends on its place"


def test_frames_that_fill_up_a_short_video_cost_one(
    encoder: ClipEncoder, clips: Clips, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated or black frames in any video of a batch are encoded once."""
    frames = clips.frames.clone()
    frames[0, 1:] = 0
    frames[1, 2] = frames[1, 0]
    frames[1, 1, 0, -1, -1] += 1
    mask = torch.ones(2, FRAMES, dtype=torch.bool)
    mask[0, 1:] = False
    batch = Clips(frames, mask, torch.zeros(2, FRAMES))
    targets = encoder.encode_frames(batch.frames, batch.mask).detach()
    counts = count_pictures(encoder, monkeypatch)
    with torch.no_grad():
        video = encoder.encode_video(batch)
    # One and black; two that differ in one number, of which the first comes again.
    assert sum(counts) == 2 + FRAMES - 1
    torch.testing.assert_close(video.frames, targets[:, :, 0])
    assert torch.equal(video.mask, mask)


def test_a_frame_that_differs_in_one_pixel_is_another_one(
    encoder: ClipEncoder, clips: Clips
) -> None:
    """In any row."""
    twins = clips.frames[:1, :1].repeat(1, 2, 1, 1, 1)
    for row in range(twins.shape[3]):
        other = twins.clone()
        other[0, 1, 0, row, 0] += 100
        clip = Clips(other, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))
        with torch.no_grad():
            vectors = encoder.encode_video(clip).frames[0]
        assert not torch.equal(vectors[0], vectors[1])
