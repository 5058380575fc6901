"""SigLIP and fixed-resolution SigLIP 2 against transformers, at random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_oracle import randomise_weights
from multilingual_texts import generated_sentences
from tokenizer_files import gemma_file, siglip_file, write_tokenizer
from torch import Tensor

import eaglenet
from eaglenet.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.siglip import (
    SIGLIP_SHAPES,
    TEXT_DEFAULTS,
    TOWER_DEFAULTS,
    VISION_DEFAULTS,
    SiglipConfig,
    SiglipEncoder,
    read_siglip_folder,
    read_siglip_tokenizer,
)
from eaglenet.methods import METHODS
from eaglenet.models.folder import load_pretrained
from sampling import slow
from texts_alone import check_texts_alone

EXACT = {"rtol": 1e-5, "atol": 1e-5}
# Input size, patch, width, heads and mlp width of B/16 and So400m, shrunk; no two axes alike.
SHAPES = {"b16": (48, 16, 36, 3, 100), "so400m": (45, 14, 40, 5, 90)}
PUBLISHED = {
    "google/siglip-base-patch16-224": 203_155_970,
    "google/siglip-large-patch16-256": 652_150_786,
    "google/siglip2-base-patch16-224": 375_187_970,
}
"""Parameters of the released models, as counted in their weight files."""
MILLIONS = {"google/siglip-so400m-patch14-384": 877.96, "google/siglip-large-patch16-256": 652.15}
"""As open_clip publishes them (docs/model_profile.csv)."""


def plain_config(shape: str, **text: Any) -> dict[str, Any]:
    image, patch, width, heads, mlp_width = SHAPES[shape]
    tower = {
        "hidden_size": width,
        "intermediate_size": mlp_width,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
    }
    return {
        "model_type": "siglip",
        "text_config": {**tower, "vocab_size": 300, "max_position_embeddings": 19, **text},
        "vision_config": {**tower, "image_size": image, "patch_size": patch},
    }


def oracle(plain: dict[str, Any], seed: int = 5) -> Any:
    """Return transformers' model with random weights of a useful size."""
    from transformers import SiglipConfig as TheirConfig
    from transformers import SiglipModel

    sections = {name: plain[name] for name in ("text_config", "vision_config")}
    return randomise_weights(SiglipModel(TheirConfig(**sections)), seed)


def save(model: Any, plain: dict[str, Any], folder: Path) -> SiglipEncoder:
    """Write the files of a model on the hub, and return our encoder."""
    import safetensors.torch

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(plain))
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "model.safetensors")
    return read_siglip_folder(folder)


def random_clips(size: int) -> Clips:
    generator = torch.Generator().manual_seed(3)
    frames = torch.randint(0, 256, (2, 5, 3, size, size), generator=generator).byte()
    return Clips(frames, torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 5))


def random_tokens(width: int, pad: int, vocabulary: int = 300) -> Tokens:
    """Return texts of different lengths, padded with ``pad``."""
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(2, vocabulary, (4, width), generator=generator)
    mask = torch.arange(width) < torch.tensor([[2], [5], [width - 1], [width]])
    return Tokens(ids.masked_fill(~mask, pad), mask)


def pooler_output(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.pooler_output


@pytest.mark.parametrize("shape", SHAPES)
@torch.no_grad()
def test_features_equal_those_of_transformers(shape: str, tmp_path: Path) -> None:
    plain = plain_config(shape, pad_token_id=1)
    model = oracle(plain)
    encoder = save(model, plain, tmp_path)
    clips, tokens = random_clips(SHAPES[shape][0]), random_tokens(19, 1)
    pixels = (clips.frames.flatten(0, 1).double() / 255 - 0.5) / 0.5
    expected = pooler_output(model.get_image_features(pixels.float()))
    video = encoder.encode_video(clips)
    torch.testing.assert_close(video.frames.flatten(0, 1), expected, **EXACT)
    sentences = pooler_output(model.get_text_features(tokens.ids))
    text = encoder.encode_text(tokens, words=True)
    torch.testing.assert_close(text.sentence, sentences, **EXACT)
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, text.sentence, **EXACT)
    assert encoder.logit_scale.item() == model.logit_scale.item()
    assert encoder.logit_bias.item() == model.logit_bias.item()  # type: ignore[union-attr]


@torch.no_grad()
def test_features_of_the_true_width_equal_those_of_transformers(tmp_path: Path) -> None:
    """B/16 at 224 pixels with one block per tower: sizes with long sums."""
    plain = plain_config("b16")
    tower = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}
    for section in ("text_config", "vision_config"):
        plain[section] |= {**tower, "num_hidden_layers": 1}
    plain["vision_config"]["image_size"] = 224
    model = oracle(plain)
    encoder = save(model, plain, tmp_path)
    frames = random_clips(224).frames[:1, :1]
    clips = Clips(frames, torch.ones(1, 1, dtype=torch.bool), torch.zeros(1, 1))
    expected = pooler_output(model.get_image_features((frames[0].float() / 255 - 0.5) / 0.5))
    torch.testing.assert_close(encoder.encode_video(clips).frames[0], expected, **EXACT)
    tokens = random_tokens(19, 1)
    expected = pooler_output(model.get_text_features(tokens.ids))
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **EXACT)


@pytest.mark.slow
@torch.no_grad()
def test_the_whole_of_b16_equals_that_of_transformers(tmp_path: Path) -> None:
    """With every block, all pixels and the whole vocabulary."""
    plain = {
        "model_type": "siglip",
        "text_config": {**TOWER_DEFAULTS, **TEXT_DEFAULTS},
        "vision_config": {**TOWER_DEFAULTS, **VISION_DEFAULTS},
    }
    model = oracle(plain)
    encoder = save(model, plain, tmp_path)
    assert encoder.config == SIGLIP_SHAPES["google/siglip-base-patch16-224"]
    frames = random_clips(224).frames[:1, :2]
    clips = Clips(frames, torch.ones(1, 2, dtype=torch.bool), torch.zeros(1, 2))
    expected = pooler_output(model.get_image_features((frames[0].float() / 255 - 0.5) / 0.5))
    torch.testing.assert_close(encoder.encode_video(clips).frames[0], expected, **EXACT)
    tokens = random_tokens(64, 1, 32_000)
    expected = pooler_output(model.get_text_features(tokens.ids))
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **EXACT)


def test_siglip2_pads_with_the_pad_token_of_gemma() -> None:
    """Its files leave the id out, or give the default of the library, which is SigLIP's."""
    from eaglenet.encoders.siglip import config_from_hub

    for text in ({}, {"pad_token_id": 1}):
        gemma = config_from_hub(plain_config("b16", vocab_size=256_000, **text))
        assert gemma.text.pad_token == 0
        assert config_from_hub(plain_config("b16", **text)).text.pad_token == 1


@torch.no_grad()
def test_texts_are_filled_to_the_length_of_training_however_wide_they_come() -> None:
    """The vector is that of the last position: narrower ids and other padding have no effect."""
    plain = plain_config("b16")
    from eaglenet.encoders.siglip import config_from_hub

    encoder = SiglipEncoder(config_from_hub(plain), seed=2).eval()
    wide = random_tokens(19, 1)
    narrow = Tokens(wide.ids[:2, :6], wide.mask[:2, :6])
    others = Tokens(wide.ids.masked_fill(~wide.mask, 7), wide.mask)
    expected = encoder.encode_text(wide).sentence
    torch.testing.assert_close(encoder.encode_text(narrow).sentence, expected[:2], **EXACT)
    torch.testing.assert_close(encoder.encode_text(others).sentence, expected, **EXACT)


def test_the_released_shapes_have_the_released_sizes() -> None:
    from transformers import SiglipConfig as TheirConfig
    from transformers import SiglipModel

    def hub(config: SiglipConfig) -> dict[str, Any]:
        return {
            name: {
                "hidden_size": tower.width,
                "intermediate_size": tower.mlp_width,
                "num_hidden_layers": tower.layers,
                "num_attention_heads": tower.heads,
            }
            for name, tower in (("text_config", config.text), ("vision_config", config.vision))
        }

    for name, config in SIGLIP_SHAPES.items():
        sections = hub(config)
        sections["text_config"]["vocab_size"] = config.text.vocabulary_size
        sections["vision_config"] |= {
            "image_size": config.vision.image_size,
            "patch_size": config.vision.patch_size,
        }
        with torch.device("meta"):
            ours = sum(weight.numel() for weight in SiglipEncoder(config).parameters())
            theirs = SiglipModel(TheirConfig(**sections))
        assert ours == sum(weight.numel() for weight in theirs.parameters()), name
        assert ours == PUBLISHED.get(name, ours), name
        assert round(ours / 1e6, 2) == MILLIONS.get(name, round(ours / 1e6, 2)), name


def their_tokens(folder: Path, kind: str, sentences: list[str], length: int) -> Tensor:
    """Return the tokens of transformers' fast tokenizer for the same files."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        pad_token="</s>" if kind == "siglip" else "<pad>",
    )
    batch = tokenizer(
        sentences, padding="max_length", truncation=True, max_length=length, return_tensors="pt"
    )
    return batch["input_ids"]


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
@pytest.mark.parametrize("count", [1000, slow(10_000)])
def test_tokens_equal_those_of_transformers_on_ten_scripts(
    count: int, kind: str, tmp_path: Path
) -> None:
    """For SigLIP 2, transformers reads the file with lower-casing and <eos>."""
    config = SiglipConfig()
    if kind == "siglip":
        write_tokenizer(tmp_path, siglip_file())
    else:
        config = SIGLIP_SHAPES["google/siglip2-base-patch16-224"]
        settings = {"add_bos_token": False, "add_eos_token": True, "eos_token": "<eos>"}
        write_tokenizer(tmp_path, gemma_file(), tokenizer_class="GemmaTokenizer", **settings)
    ours = read_siglip_tokenizer(tmp_path, config)
    theirs = tmp_path
    if kind == "siglip2":
        content = json.loads((tmp_path / "tokenizer.json").read_text("utf-8"))
        lower = {"type": "Lowercase"}
        content["normalizer"] = {"type": "Sequence", "normalizers": [lower, content["normalizer"]]}
        template = [
            {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<eos>", "type_id": 0}},
        ]
        special = {"<eos>": {"id": "<eos>", "ids": [1], "tokens": ["<eos>"]}}
        content["post_processor"] = {
            "type": "TemplateProcessing",
            "single": template,
            "pair": template,
            "special_tokens": special,
        }
        theirs = write_tokenizer(tmp_path / "theirs", json.dumps(content))
    sentences = generated_sentences(count, seed=1)
    tokens = ours(sentences)
    assert torch.equal(tokens.ids, their_tokens(theirs, kind, sentences, 64))
    assert tokens.mask.any(dim=1).all()
    ours.save(tmp_path / "saved")
    from eaglenet.encoders.tokenizers import read_tokenizer

    again = read_tokenizer(tmp_path / "saved")
    assert again is not None
    assert torch.equal(again(sentences[:200]).ids, tokens.ids[:200])


def test_special_tokens_may_have_options(tmp_path: Path) -> None:
    """As older versions of transformers save them."""
    config = SIGLIP_SHAPES["google/siglip2-base-patch16-224"]
    settings = {"add_bos_token": False, "add_eos_token": True}
    tokens = []
    for eos in ("<eos>", {"__type": "AddedToken", "content": "<eos>", "lstrip": False}):
        write_tokenizer(tmp_path, gemma_file(), **settings, eos_token=eos)
        tokens.append(read_siglip_tokenizer(tmp_path, config)(["a red ball"]).ids)
    assert torch.equal(*tokens)
    write_tokenizer(tmp_path, gemma_file(), **settings, eos_token="<end>")
    with pytest.raises(CheckpointError, match="names '<end>', which is no token"):
        read_siglip_tokenizer(tmp_path, config)


def test_a_folder_gives_the_zero_shot_model_and_it_is_saved_and_loaded(tmp_path: Path) -> None:
    plain = plain_config("b16", vocab_size=3000, pad_token_id=1)
    save(oracle(plain), plain, tmp_path / "hub")
    write_tokenizer(tmp_path / "hub", siglip_file())
    method = eaglenet.load(tmp_path / "hub")
    assert (method.encoder.family, method.frame_spec.size) == ("siglip", 48)
    assert method.frame_spec.resize == "stretch"
    eaglenet.save(method, tmp_path / "model")
    again = eaglenet.load(tmp_path / "model")
    clips, sentences = random_clips(48), ["a red ball", "\u4e00\u4e8c"]
    first, second = (
        m.score(m.encode_text(m.tokenize(sentences)), m.encode_video(clips))
        for m in (method, again)
    )
    assert torch.equal(first, second)
    check_texts_alone(tmp_path / "hub")


def test_eaglenet_starts_from_the_scale_and_the_bias_of_the_tower() -> None:
    encoder = SiglipEncoder(
        SIGLIP_SHAPES["google/siglip-base-patch16-224"].__class__(
            vision=_tiny_vision(), text=_tiny_text()
        )
    )
    encoder.logit_scale.data.fill_(4.72)
    encoder.logit_bias.data.fill_(-16.8)  # type: ignore[union-attr]
    spec = METHODS["eaglenet"]
    loss = spec.build(spec.config_class(dim=12, num_frames=3), encoder).loss
    assert loss.temperature.item() == pytest.approx(4.72)  # type: ignore[union-attr]
    assert loss.bias.item() == pytest.approx(-16.8)  # type: ignore[union-attr]


def _tiny_vision() -> Any:
    from eaglenet.encoders.siglip import SiglipVisionConfig

    return SiglipVisionConfig(16, 8, 12, 1, 2, 20)


def _tiny_text() -> Any:
    from eaglenet.encoders.siglip import SiglipTextConfig

    return SiglipTextConfig(300, 19, 10, 1, 2, 14)


def test_what_it_cannot_do_is_said(tmp_path: Path) -> None:
    encoder = SiglipEncoder(SiglipConfig(_tiny_vision(), _tiny_text()))
    spec = METHODS["eaglenet"]
    with pytest.raises(ConfigError, match="token shift works inside the image towers"):
        spec.build(spec.config_class(dim=12, num_frames=3, token_shift=True), encoder)
    (tmp_path / "config.json").write_text('{"model_type": "siglip2"}')
    with pytest.raises(CheckpointError, match="NaFlex"):
        load_pretrained(tmp_path)
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json and no spiece\.model"):
        read_siglip_tokenizer(tmp_path, SiglipConfig())
