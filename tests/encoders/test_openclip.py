"""Models of open_clip by name: equal to open_clip, used in searches, unsupported ones refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import eaglenet
from eaglenet.core.errors import ConfigError, ModelNotFoundError, UsageError
from eaglenet.core.types import Clips
from eaglenet.encoders import int8
from eaglenet.encoders.openclip import OpenClipEncoder, OpenClipTokenizer
from eaglenet.methods import METHODS
from eaglenet.models.folder import load_pretrained
from timm_oracle import import_oracle

TEXT = {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
VISION = {"image_size": 24, "patch_size": 8, "width": 20, "head_width": 10, "layers": 2}


@pytest.fixture(scope="module")
def named_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Any]:
    """Return ``openclip:NAME/FILE`` of a model with random weights, and open_clip's model."""
    package = import_oracle("open_clip")
    folder = tmp_path_factory.mktemp("openclip")
    for name, more in (("tiny-crop", {}), ("tiny-custom", {"custom_text": True})):
        config = {"embed_dim": 12, "vision_cfg": VISION, "text_cfg": TEXT, **more}
        (folder / f"{name}.json").write_text(json.dumps(config))
    package.add_model_config(folder)
    torch.manual_seed(7)
    model = package.create_model("tiny-crop", load_weights=False).eval()
    weights = {name: value.contiguous() for name, value in model.state_dict().items()}
    safetensors.torch.save_file(weights, folder / "weights.safetensors")
    return f"openclip:tiny-crop/{folder / 'weights.safetensors'}", model


def clips() -> Clips:
    frames = torch.randint(0, 256, (2, 3, 3, 24, 24), dtype=torch.uint8)
    return Clips(frames, torch.ones(2, 3, dtype=torch.bool), torch.zeros(2, 3))


@torch.no_grad()
def test_frames_and_sentences_are_those_of_open_clip(named_model: tuple[str, Any]) -> None:
    name, model = named_model
    encoder, tokenizer = load_pretrained(name)
    inputs = clips()
    mean, std = (
        torch.tensor(values).view(3, 1, 1)
        for values in (model.visual.image_mean, model.visual.image_std)
    )
    pixels = (inputs.frames.flatten(0, 1) / 255 - mean) / std
    frames = encoder.encode_video(inputs).frames.flatten(0, 1)
    torch.testing.assert_close(frames, model.encode_image(pixels), atol=1e-5, rtol=0)
    texts = ["a red ball on a table", "two dogs"]
    expected = model.encode_text(import_oracle("open_clip").get_tokenizer("tiny-crop")(texts))
    actual = encoder.encode_text(tokenizer(texts, 9)).sentence
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert encoder.logit_scale.item() == pytest.approx(model.logit_scale.item())


def test_a_model_folder_of_it_gives_the_same_scores(
    named_model: tuple[str, Any], tmp_path: Path
) -> None:
    model = eaglenet.load(named_model[0])
    eaglenet.save(model, tmp_path / "model")
    again = eaglenet.load(tmp_path / "model")
    inputs, texts = clips(), ["a red ball", "two dogs", "rain"]
    with torch.no_grad():
        assert torch.equal(model.encode_video(inputs).frames, again.encode_video(inputs).frames)
        assert torch.equal(
            model.encode_text(model.tokenizer(texts)).sentence,
            again.encode_text(again.tokenizer(texts)).sentence,
        )


def test_what_it_cannot_do_is_said_by_name(named_model: tuple[str, Any]) -> None:
    encoder, tokenizer = load_pretrained(named_model[0])
    with pytest.raises(UsageError, match="openclip encoder returns vectors of frames"):
        encoder.encode_video(clips(), patches=True)
    with pytest.raises(UsageError, match="openclip encoder returns one vector per text"):
        encoder.encode_text(tokenizer(["a"]), words=True)
    with pytest.raises(ConfigError, match="token shift works inside the image towers"):
        encoder.set_token_shift((0,))
    assert isinstance(encoder, OpenClipEncoder)
    with pytest.raises(UsageError, match="no blocks for int8"):
        int8.int8_tower(encoder.vision, 24)
    for name in ("ts2net", "frozen", "bridgeformer"):
        spec = METHODS[name]
        with pytest.raises(ConfigError, match=f"{name} works inside.*openclip:NAME"):
            spec.build(spec.config_class(), encoder)


def test_a_tokenizer_of_another_kind_works_and_says_that_it_cannot_be_saved(
    named_model: tuple[str, Any], tmp_path: Path
) -> None:
    tokenizer = OpenClipTokenizer("tiny-crop", 77, 0)
    actual = tokenizer(["a red ball", "rain"], 9)
    assert actual.ids.shape == (2, 9)
    assert actual.mask.sum(dim=1).tolist() == [5, 3]
    with pytest.raises(UsageError, match="open_clip's tiny-crop has no file of its own"):
        tokenizer.save(tmp_path)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("openclip:ViT-B-32", "write openclip:NAME/PRETRAINED"),
        ("openclip:no-such-model/laion2b", "open_clip has no model 'no-such-model'"),
        ("openclip:ViT-B-32/no-such-tag", "it has: .*laion2b_s34b_b79k.*no such file"),
    ],
)
def test_a_wrong_name_is_answered_with_right_ones(
    named_model: tuple[str, Any], name: str, message: str
) -> None:
    with pytest.raises((UsageError, ModelNotFoundError), match=message):
        load_pretrained(name)


def test_weights_against_commercial_use_are_asked_for_before_they_are_downloaded(
    named_model: tuple[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import huggingface_hub
    from huggingface_hub import constants

    from eaglenet.encoders import hub

    (tmp_path / "README.md").write_text("---\nlicense: cc-by-nc-4.0\n---\n")

    def download(identifier: str, file: str, **options: object) -> str:
        assert (identifier, file) == ("timm/vit_base_patch32_clip_224.metaclip_400m", "README.md")
        return str(tmp_path / file)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "require_reachable", lambda endpoint, name: None)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(UsageError, match=r"cc-by-nc-4\.0, which forbids commercial use"):
        load_pretrained("openclip:ViT-B-32-quickgelu/metaclip_400m")


def test_without_the_package_the_command_to_install_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(UsageError, match=r"pip install 'eaglenet\[openclip\]'"):
        load_pretrained("openclip:ViT-B-32/openai")
