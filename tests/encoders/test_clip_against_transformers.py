"""Features equal those of transformers' CLIPModel from the same folder, to 1e-5."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_oracle import END, SHAPES, normalise_pixels, oracle_model, random_clips, random_tokens
from safetensors.torch import load_file, save_file

from clip_folder import learn_tokenizer, save_clip
from eaglenet.core.errors import CheckpointError, ModelNotFoundError
from eaglenet.encoders.clip_files import load_clip, read_clip_folder

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture(scope="module", params=SHAPES)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, Path]:
    """Return the name of a shape, a model of transformers, and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    oracle = oracle_model(request.param)
    oracle.save_pretrained(folder)
    return request.param, oracle, folder


@torch.no_grad()
def test_text_features_equal_the_oracle_alone_and_in_a_batch(pair: tuple[str, Any, Path]) -> None:
    _, oracle, folder = pair
    encoder, tokens = read_clip_folder(folder), random_tokens()
    expected = oracle.get_text_features(input_ids=tokens.ids).pooler_output
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **TOLERANCE)
    for row in range(len(tokens)):
        alone = encoder.encode_text(tokens[row]).sentence
        torch.testing.assert_close(alone, expected[row : row + 1], **TOLERANCE)


@torch.no_grad()
def test_word_features_are_the_projection_of_every_position(pair: tuple[str, Any, Path]) -> None:
    _, oracle, folder = pair
    encoder, tokens = read_clip_folder(folder), random_tokens()
    hidden_states = oracle.text_model(input_ids=tokens.ids).last_hidden_state
    features = encoder.encode_text(tokens, words=True)
    torch.testing.assert_close(features.words, oracle.text_projection(hidden_states), **TOLERANCE)
    assert torch.equal(features.words_mask, tokens.mask)
    ends = tokens.mask.sum(dim=1) - 1
    at_the_end = features.words[torch.arange(len(tokens)), ends]
    torch.testing.assert_close(features.sentence, at_the_end, **TOLERANCE)
    torch.testing.assert_close(features.sentence, encoder.encode_text(tokens).sentence, **TOLERANCE)


@torch.no_grad()
def test_frame_features_equal_the_oracle_alone_and_in_a_batch(pair: tuple[str, Any, Path]) -> None:
    shape, oracle, folder = pair
    encoder, clips = read_clip_folder(folder), random_clips(shape)
    expected = oracle.get_image_features(pixel_values=normalise_pixels(clips)).pooler_output
    expected = expected.unflatten(0, (2, 5))
    torch.testing.assert_close(encoder.encode_video(clips).frames, expected, **TOLERANCE)
    alone = encoder.encode_video(clips[1]).frames
    torch.testing.assert_close(alone, expected[1:], **TOLERANCE)


@torch.no_grad()
def test_patch_features_are_all_tokens_with_the_class_token_first(
    pair: tuple[str, Any, Path],
) -> None:
    shape, oracle, folder = pair
    encoder, clips = read_clip_folder(folder), random_clips(shape)
    hidden_states = oracle.vision_model(pixel_values=normalise_pixels(clips)).last_hidden_state
    expected = oracle.visual_projection(oracle.vision_model.post_layernorm(hidden_states))
    features = encoder.encode_video(clips, patches=True)
    torch.testing.assert_close(features.patches.flatten(0, 1), expected, **TOLERANCE)
    assert torch.equal(features.frames, features.patches[:, :, 0])
    class_only = encoder.encode_video(clips).frames
    torch.testing.assert_close(features.frames, class_only, **TOLERANCE)


@torch.no_grad()
def test_our_folders_load_there_and_back(pair: tuple[str, Any, Path], tmp_path: Path) -> None:
    from transformers import CLIPModel

    shape, oracle, folder = pair
    save_clip(read_clip_folder(folder), None, tmp_path)
    there = CLIPModel.from_pretrained(tmp_path).eval()
    tokens, pixels = random_tokens(), normalise_pixels(random_clips(shape))
    for ours, theirs in zip(there.state_dict().values(), oracle.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(
        there.get_image_features(pixel_values=pixels).pooler_output,
        oracle.get_image_features(pixel_values=pixels).pooler_output,
        **TOLERANCE,
    )
    torch.testing.assert_close(
        there.get_text_features(input_ids=tokens.ids).pooler_output,
        oracle.get_text_features(input_ids=tokens.ids).pooler_output,
        **TOLERANCE,
    )


@torch.no_grad()
@pytest.mark.parametrize(("end_token", "expected_end"), [(2, None), (END, END), (7, 7)])
def test_the_end_token_is_found_as_the_config_says(
    end_token: int, expected_end: int | None, tmp_path: Path
) -> None:
    oracle = oracle_model("b32-quick", end_token=end_token)
    oracle.save_pretrained(tmp_path)
    encoder, tokens = read_clip_folder(tmp_path), random_tokens()
    tokens.ids[1, 2] = tokens.ids[2, 4] = 7
    assert encoder.config.text.end_token == expected_end
    expected = oracle.get_text_features(input_ids=tokens.ids).pooler_output
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_runs_and_stays_near_full_precision(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    oracle_model("b16-quick").save_pretrained(tmp_path)
    full, half = read_clip_folder(tmp_path), read_clip_folder(tmp_path).to(dtype)
    clips, tokens = random_clips("b16-quick"), random_tokens()
    expected, frames = full.encode_video(clips).frames, half.encode_video(clips).frames
    assert frames.dtype == dtype
    assert torch.cosine_similarity(expected, frames.float(), dim=-1).min() > 0.999
    expected, texts = full.encode_text(tokens).sentence, half.encode_text(tokens).sentence
    assert torch.cosine_similarity(expected, texts.float(), dim=-1).min() > 0.999
    # Pixel statistics are not rounded with the weights.
    assert torch.equal(full.vision.patch_embedding.scale, half.vision.patch_embedding.scale)


def test_configs_that_leave_defaults_out_or_use_the_early_names_are_understood() -> None:
    from transformers import CLIPConfig

    from eaglenet.encoders.clip_config import CLIP_SHAPES
    from eaglenet.encoders.clip_files import config_from_hub

    cases = [
        {},
        {"text_config": None, "vision_config": {"patch_size": 16}},
        {"projection_dim": 768, "text_config": {"hidden_size": 768, "eos_token_id": 2},
         "text_config_dict": {"hidden_size": 640, "num_attention_heads": 10},
         "vision_config_dict": {"patch_size": 14, "hidden_act": "gelu"}},
    ]  # fmt: skip
    for values in cases:
        ours, theirs = config_from_hub(values), CLIPConfig(**values)
        assert ours.dim == theirs.projection_dim
        assert ours.text.end_token == theirs.text_config.eos_token_id
        for tower, other in ((ours.text, theirs.text_config), (ours.vision, theirs.vision_config)):
            assert tower.width == other.hidden_size
            assert tower.layers == other.num_hidden_layers
            assert tower.heads == other.num_attention_heads
            assert tower.mlp_width == other.intermediate_size
            assert tower.activation == other.hidden_act
        assert ours.vision.patch_size == theirs.vision_config.patch_size
    legacy = config_from_hub({"text_config": {"eos_token_id": 2}})
    assert legacy == CLIP_SHAPES["ViT-B/32"]


def test_sharded_and_older_weight_files_are_read(tmp_path: Path) -> None:
    oracle_model("b32-quick").save_pretrained(tmp_path / "one")
    expected = read_clip_folder(tmp_path / "one").state_dict()
    weights = load_file(tmp_path / "one" / "model.safetensors")
    names = sorted(weights)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    config = (tmp_path / "one" / "config.json").read_text()

    sharded_folder, older = tmp_path / "sharded", tmp_path / "older"
    for folder in (sharded_folder, older):
        folder.mkdir()
        (folder / "config.json").write_text(config)
    for file, part in halves.items():
        save_file({name: weights[name] for name in part}, sharded_folder / file)
    where = {name: file for file, part in halves.items() for name in part}
    index = sharded_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    torch.save(weights, older / "pytorch_model.bin")
    for folder in (sharded_folder, older):
        for name, value in read_clip_folder(folder).state_dict().items():
            assert torch.equal(value, expected[name])
    (sharded_folder / "b.safetensors").unlink()
    with pytest.raises(ModelNotFoundError, match=r"b\.safetensors"):
        read_clip_folder(sharded_folder)


def test_a_folder_loads_with_its_tokenizer_and_its_pixel_statistics(tmp_path: Path) -> None:
    oracle_model("b32-quick").save_pretrained(tmp_path)
    words = learn_tokenizer(["a red ball"])
    words.save(tmp_path)
    statistics = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(statistics))
    encoder, tokenizer = load_clip(str(tmp_path))
    assert encoder.config.pixel_std == (0.4, 0.5, 0.6)
    assert not encoder.training
    assert torch.equal(tokenizer(["red ball"]).ids, words(["red ball"]).ids)
    save_clip(encoder, tokenizer, tmp_path / "again")
    again, _ = load_clip(tmp_path / "again")
    assert again.config == encoder.config


def test_wrong_folders_are_named_with_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"config\.json"):
        load_clip(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelNotFoundError, match=r"model\.safetensors"):
        load_clip(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load_clip(tmp_path)
    save_file({"something": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="both towers"):
        load_clip(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
    with pytest.raises(CheckpointError, match="siglip"):
        load_clip(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not JSON"):
        load_clip(tmp_path)


def test_weights_that_do_not_fit_the_config_are_named(tmp_path: Path) -> None:
    oracle_model("b32-quick").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["projection_dim"] = 29
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"projection\.weight is \[28, 48\].*\[29, 48\]"):
        load_clip(tmp_path)
