"""Families of encoders: the registry, and a family of another package."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import eaglenet
from eaglenet.core.errors import CheckpointError, ConfigError, ModelNotFoundError
from eaglenet.core.types import Clips, Encoder, TextFeatures, Tokenizer, Tokens, VideoFeatures
from eaglenet.encoders import ENCODERS, EncoderSpec, Pretrained
from eaglenet.encoders.base import BaseEncoder
from eaglenet.encoders.clip import ClipEncoder
from eaglenet.encoders.clip_config import ClipConfig, TextConfig, VisionConfig
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.methods import METHODS
from eaglenet.models.folder import load_pretrained

TINY = ClipConfig(
    dim=6,
    vision=VisionConfig(image_size=16, patch_size=8, width=8, layers=2, heads=2, mlp_width=10),
    text=TextConfig(
        vocabulary_size=600, context_length=9, width=4, layers=1, heads=2, mlp_width=12
    ),
)


@dataclass(frozen=True)
class ColourConfig:
    """Width of an encoder of mean colours."""

    dim: int = 5


class ColourEncoder(BaseEncoder):
    """Encodes texts by their length, and frames by a linear map of their mean colour."""

    family = "colours"
    image_size = 8
    context_length = 9
    config: ColourConfig

    def __init__(self, config: ColourConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config, self.dim = config, config.dim
        self.colours = nn.Linear(3, config.dim)
        self.logit_scale = nn.Parameter(torch.zeros(()))

    def encode_text(self, texts: Tokens | TextFeatures, *, words: bool = False) -> TextFeatures:
        """Return the bias, scaled by the number of tokens of each text."""
        assert isinstance(texts, Tokens)
        return TextFeatures(texts.mask.sum(dim=1, keepdim=True) * self.colours.bias)

    def encode_video(
        self, videos: Clips | VideoFeatures, *, patches: bool = False
    ) -> VideoFeatures:
        """Return the mean colour of every frame."""
        assert isinstance(videos, Clips)
        return VideoFeatures(self.colours(videos.frames.float().mean((-1, -2))), videos.mask)


def load_colours(place: Path) -> Pretrained:
    """Load a folder with one file."""
    return Pretrained(ColourEncoder(ColourConfig(dim=7)).eval(), ClipTokenizer.from_merges([]))


@pytest.fixture
def colours() -> Iterator[EncoderSpec]:
    """Register a family like another package."""
    spec = EncoderSpec(
        title="mean colours",
        config_class=ColourConfig,
        build=ColourEncoder,
        recognises=lambda folder: (folder / "colours.txt").is_file(),
        load=load_colours,
    )
    ENCODERS.add("colours", spec)
    yield spec
    ENCODERS._entries.pop("colours", None)


def test_our_encoders_meet_the_protocol() -> None:
    """Static types check this, too, except for names that exist only at run time."""
    for encoder in (ClipEncoder(TINY), FeatureEncoder(FeatureConfig(4, 5, 6)), ColourEncoder):
        instance = encoder if isinstance(encoder, nn.Module) else encoder(ColourConfig())
        assert isinstance(instance, Encoder)
    assert ClipEncoder(TINY).vocabulary_size == TINY.text.vocabulary_size
    assert FeatureEncoder(FeatureConfig(4, 5, 6)).vocabulary_size is None
    assert isinstance(ClipTokenizer.from_merges([]), Tokenizer)


def test_a_family_of_another_package_is_recognised_saved_and_loaded(
    colours: EncoderSpec, tmp_path: Path
) -> None:
    """One registry entry is enough to load published files and model folders."""
    (tmp_path / "colours.txt").write_text("red")
    method = eaglenet.load(tmp_path)
    assert (method.encoder.family, method.encoder.dim) == ("colours", 7)
    assert method.frame_spec.size == 8
    eaglenet.save(method, tmp_path / "saved")
    plain = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert plain["encoder"] == {"kind": "colours", "config": {"dim": 7}}
    again = eaglenet.load(tmp_path / "saved")
    for name, value in method.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_a_model_of_an_unknown_family_is_refused_by_its_name(
    colours: EncoderSpec, tmp_path: Path
) -> None:
    method = METHODS["xpool"].build(METHODS["xpool"].config_class(), ColourEncoder(ColourConfig()))
    eaglenet.save(method, tmp_path)
    ENCODERS._entries.pop("colours")
    with pytest.raises(CheckpointError, match="unknown encoder family 'colours'"):
        eaglenet.load(tmp_path)
    ENCODERS.add("colours", colours)


def test_methods_inside_the_tower_refuse_other_families_by_name(colours: EncoderSpec) -> None:
    for name in ("ts2net", "clipvip", "tvproxynet"):
        spec = METHODS[name]
        with pytest.raises(ConfigError, match="cannot run on mean colours"):
            spec.build(spec.config_class(), ColourEncoder(ColourConfig()))


def test_folders_of_no_known_family_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"no config\.json"):
        load_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(CheckpointError, match="not a model of a known family"):
        load_pretrained(tmp_path)


def test_a_sigmoid_loss_takes_scale_and_bias_together_or_not_at_all() -> None:
    """A bias comes with its scale; without one, the loss keeps its configuration."""
    spec = METHODS["eaglenet"]
    config = spec.config_class(dim=TINY.dim, num_frames=3)
    plain = spec.build(config, ClipEncoder(TINY)).loss
    assert plain.temperature.item() == pytest.approx(4.77)  # type: ignore[union-attr]
    encoder = ClipEncoder(TINY)
    encoder.logit_scale.data.fill_(4.5)
    encoder.logit_bias = nn.Parameter(torch.tensor(-16.5))
    loss = spec.build(config, encoder).loss
    assert (loss.temperature.item(), loss.bias.item()) == (4.5, -16.5)  # type: ignore[union-attr]
    assert not encoder.logit_scale.requires_grad
    assert not encoder.logit_bias.requires_grad


def test_configs_are_frozen_plain_values() -> None:
    for name in ENCODERS:
        kind = ENCODERS[name].config_class
        assert dataclasses.is_dataclass(kind)
        assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
