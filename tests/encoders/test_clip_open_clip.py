"""CLIP and MetaCLIP 2 in open_clip's layout, against open_clip at random weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from clip_oracle import randomise_weights
from tokenizer_files import write_tokenizer, xlm_file

import eaglenet
from clip_folder import learn_tokenizer
from eaglenet.core.errors import CheckpointError
from eaglenet.core.types import Clips
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_files import config_from_open_clip
from eaglenet.encoders.tokenizers import ClipTokenizer, JsonTokenizer
from eaglenet.models.folder import load_pretrained
from texts_alone import check_texts_alone
from timm_oracle import import_oracle

EXACT = {"rtol": 1e-5, "atol": 1e-5}
TOKENIZER = learn_tokenizer(["red ball"])
VISION = {"image_size": 48, "layers": 2, "width": 96, "head_width": 24, "patch_size": 16}
TEXT: dict[str, Any] = {"context_length": 21, "width": 60, "heads": 3, "layers": 3}
KINDS: dict[str, dict[str, Any]] = {
    "laion": {
        "embed_dim": 40,
        "vision_cfg": VISION,
        "text_cfg": {**TEXT, "vocab_size": TOKENIZER.vocabulary_size},
    },
    "metaclip2": {
        "embed_dim": 40,
        "quick_gelu": True,
        "vision_cfg": VISION,
        "text_cfg": {
            **TEXT,
            "vocab_size": 3000,
            "pool_type": "eos",
            "eos_id": 2,
            "hf_tokenizer_name": "facebook/xlm-v-base",
        },
    },
}
"""No two axes alike; LAION's activation is the exact GELU, heads are not 64 wide."""


def save(kind: str, folder: Path) -> Any:
    """Write the files of a model on the hub, with timm's config; return open_clip's model."""
    import safetensors.torch

    model = randomise_weights(import_oracle("open_clip").model.CLIP(**KINDS[kind]))
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4], "resize_mode": "shortest"}
    plain = {"model_cfg": KINDS[kind], "preprocess_cfg": pictures}
    (folder / "open_clip_config.json").write_text(json.dumps(plain))
    (folder / "config.json").write_text(json.dumps({"architecture": "vit_base_patch16_clip_224"}))
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "open_clip_model.safetensors")
    if kind == "laion":
        TOKENIZER.save(folder)
    else:
        write_tokenizer(folder, xlm_file(), tokenizer_class="XLMRobertaTokenizer")
    return model


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_features_equal_those_of_open_clip(kind: str, tmp_path: Path) -> None:
    model = save(kind, tmp_path)
    encoder, tokenizer = load_pretrained(tmp_path)
    assert isinstance(encoder, ClipEncoder)
    assert isinstance(tokenizer, ClipTokenizer if kind == "laion" else JsonTokenizer)
    check_texts_alone(tmp_path)
    generator = torch.Generator().manual_seed(3)
    frames = torch.randint(0, 256, (2, 5, 3, 48, 48), generator=generator).byte()
    clips = Clips(frames, torch.ones(2, 5, dtype=torch.bool), torch.zeros(2, 5))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4)))
    expected = model.encode_image((frames.flatten(0, 1) / 255 - mean) / std)
    torch.testing.assert_close(encoder.encode_video(clips).frames.flatten(0, 1), expected, **EXACT)
    tokens = tokenizer(["red ball", "a ball", "red red red ball"], 21)
    expected = model.encode_text(tokens.ids)
    torch.testing.assert_close(encoder.encode_text(tokens).sentence, expected, **EXACT)


def test_the_file_of_weights_beside_its_config_is_the_same_model(tmp_path: Path) -> None:
    save("laion", tmp_path / "hub")
    whole = load_pretrained(tmp_path / "hub")[0]
    by_file = load_pretrained(tmp_path / "hub" / "open_clip_model.safetensors")[0]
    assert by_file.config == whole.config
    eaglenet.save(eaglenet.load(tmp_path / "hub"), tmp_path / "model")
    assert eaglenet.load(tmp_path / "model").encoder.config == whole.config


@pytest.mark.parametrize(
    ("section", "option", "name"),
    [
        ("vision_cfg", {"attentional_pool": True}, "vision attentional_pool"),
        ("text_cfg", {"pool_type": "last"}, "text pool_type 'last'"),
        ("text_cfg", {"hf_model_name": "roberta-base"}, "text hf_model_name"),
        ("multimodal_cfg", {"width": 8}, "multimodal_cfg"),
    ],
)
def test_options_that_change_the_towers_are_refused_by_name(
    section: str, option: dict[str, Any], name: str
) -> None:
    plain = KINDS["laion"]
    new_values = {**plain, section: {**plain.get(section, {}), **option}}
    with pytest.raises(CheckpointError, match=f"{name}.*openclip:NAME/PRETRAINED"):
        config_from_open_clip({"model_cfg": new_values}, {})


def test_weights_for_another_vocabulary_than_clips_are_refused(tmp_path: Path) -> None:
    """MetaCLIP 2's file looks like OpenAI's, but CLIP's vocabulary does not fit it."""
    model = save("metaclip2", tmp_path / "hub")
    path = tmp_path / "metaclip2.pt"
    torch.save(model.state_dict(), path)
    TOKENIZER.save(tmp_path)
    with pytest.raises(CheckpointError, match=r"3,000 word pieces.*facebook/metaclip-2"):
        load_pretrained(path)
