"""MetaCLIP 2, CLIP's towers with XLM-R's vocabulary, against transformers at random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_oracle import normalise_pixels, randomise_weights
from multilingual_texts import generated_sentences
from tokenizer_files import write_tokenizer, xlm_file

import eaglenet
from clip_folder import config_to_hub, save_clip
from eaglenet.core.errors import ModelNotFoundError
from eaglenet.core.types import Clips, Tokens
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.clip_files import config_from_hub, load_clip, read_clip_folder
from eaglenet.encoders.tokenizers import JsonTokenizer
from eaglenet.models.folder import load_pretrained
from sampling import slow
from texts_alone import check_texts_alone

EXACT = {"rtol": 1e-5, "atol": 1e-5}
VOCABULARY, END = 3000, 2
PLAIN: dict[str, Any] = {
    "model_type": "metaclip_2",
    "projection_dim": 28,
    "text_config": {
        "vocab_size": VOCABULARY,
        "hidden_size": 36,
        "intermediate_size": 100,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "max_position_embeddings": 77,
        "eos_token_id": END,
    },
    "vision_config": {
        "hidden_size": 48,
        "intermediate_size": 90,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 56,
        "patch_size": 14,
        "hidden_act": "gelu",
    },
}


def oracle() -> Any:
    from transformers import MetaClip2Config, MetaClip2Model

    options = {name: value for name, value in PLAIN.items() if name != "model_type"}
    return randomise_weights(MetaClip2Model(MetaClip2Config(**options)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a small MetaCLIP 2 with the files that the hub has."""
    import safetensors.torch

    place = tmp_path_factory.mktemp("metaclip2")
    (place / "config.json").write_text(json.dumps(PLAIN))
    weights = {name: value.contiguous() for name, value in oracle().state_dict().items()}
    safetensors.torch.save_file(weights, place / "model.safetensors")
    return write_tokenizer(place, xlm_file(), tokenizer_class="XLMRobertaTokenizer")


def random_clips() -> Clips:
    frames = torch.randint(0, 256, (2, 5, 3, 56, 56), generator=torch.Generator().manual_seed(3))
    return Clips(frames.byte(), torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 5))


@torch.no_grad()
def test_features_equal_those_of_transformers_and_texts_end_at_token_2(folder: Path) -> None:
    """In CLIP's early configs, 2 means "the largest id"; here it is the end token."""
    encoder, model = read_clip_folder(folder), oracle()
    ids = torch.randint(5, VOCABULARY, (4, 13), generator=torch.Generator().manual_seed(4))
    mask = torch.arange(13) < torch.tensor([[3], [6], [9], [13]])
    ids[:, 0], ids = 0, ids.masked_fill(~mask, 1)
    ids[torch.arange(4), mask.sum(dim=1) - 1] = END
    expected = model.get_text_features(ids)
    expected = expected if isinstance(expected, torch.Tensor) else expected.pooler_output
    text = encoder.encode_text(Tokens(ids, mask))
    torch.testing.assert_close(text.sentence, expected, **EXACT)
    frames = model.get_image_features(normalise_pixels(random_clips()))
    frames = frames if isinstance(frames, torch.Tensor) else frames.pooler_output
    video = encoder.encode_video(random_clips())
    torch.testing.assert_close(video.frames.flatten(0, 1), frames, **EXACT)


@pytest.mark.parametrize("count", [1000, slow(10_000)])
def test_tokens_equal_those_of_transformers_on_ten_scripts(count: int, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    _, tokenizer = load_clip(folder)
    theirs = PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), pad_token="<pad>"
    )
    sentences = generated_sentences(count, seed=2)
    expected = theirs(
        sentences, padding="max_length", truncation=True, max_length=77, return_tensors="pt"
    )
    tokens = tokenizer(sentences)
    assert torch.equal(tokens.ids, expected["input_ids"])
    assert torch.equal(tokens.mask, expected["attention_mask"].bool())


def test_it_is_recognised_saved_and_loaded(folder: Path, tmp_path: Path) -> None:
    method = eaglenet.load(folder)
    assert method.encoder.family == "clip"
    eaglenet.save(method, tmp_path)
    again = eaglenet.load(tmp_path)
    assert isinstance(again.tokenizer, JsonTokenizer)
    sentences = ["a red ball", "\u05d0\u05d1"]
    first, second = (
        m.score(m.encode_text(m.tokenize(sentences)), m.encode_video(random_clips()))
        for m in (method, again)
    )
    assert torch.equal(first, second)
    check_texts_alone(folder)


def test_a_saved_folder_is_still_metaclip_2(folder: Path, tmp_path: Path) -> None:
    encoder, tokenizer = load_clip(folder)
    save_clip(encoder, tokenizer, tmp_path)
    again, _ = load_pretrained(tmp_path)
    assert again.config == encoder.config
    plain = config_to_hub(encoder.config)
    assert plain["model_type"] == "metaclip_2"
    assert config_from_hub(plain).text.end_token == END


def test_the_huge_model_has_the_size_that_transformers_gives_it() -> None:
    from transformers import MetaClip2Config, MetaClip2Model

    config = ClipConfig(
        dim=1024,
        vision=VisionConfig(patch_size=14, width=1280, layers=32, heads=16, mlp_width=5120),
        text=TextConfig(901629, width=1024, layers=24, heads=16, mlp_width=4096, end_token=END),
    )
    plain = {name: value for name, value in config_to_hub(config).items() if "model" not in name}
    plain.pop("architectures")
    with torch.device("meta"):
        theirs = MetaClip2Model(MetaClip2Config(**plain))
        ours = ClipEncoder(config)
    counts = [sum(weight.numel() for weight in model.parameters()) for model in (ours, theirs)]
    assert counts[0] == counts[1]
    assert 1.8e9 < counts[0] < 1.9e9  # published as 1.86 billion


def test_a_folder_without_a_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ModelNotFoundError, match=r"no tokenizer\.json"):
        load_pretrained(tmp_path)
