"""Recipes on SigLIP 2 and PE-Core fit the towers they name."""

from __future__ import annotations

import dataclasses

import pytest

from eaglenet.cli.models import shape_of
from eaglenet.encoders.catalogue import CARDS
from eaglenet.encoders.clip_config import TextConfig
from eaglenet.encoders.perception import PerceptionConfig, PerceptionVisionConfig
from eaglenet.encoders.siglip import SiglipConfig, SiglipTextConfig, SiglipVisionConfig
from eaglenet.research.experiments.build import build_method
from eaglenet.research.experiments.experiment import EncoderChoice
from eaglenet.research.recipes import Recipe
from eaglenet.research.recipes.setups import TOWERS


@pytest.mark.parametrize("dataset", ["msrvtt", "didemo", "msvd", "vatex"])
@pytest.mark.parametrize("tower", [name for name, tower in TOWERS.items() if not tower.is_clip])
def test_sizes_are_those_of_the_tower(dataset: str, tower: str) -> None:
    """Width, pixels and words: a recipe must not fail after a download of gigabytes."""
    experiment = Recipe("eaglenet", dataset, tower).build()
    card = CARDS[experiment.encoder.source]
    shape = shape_of(card)
    assert isinstance(shape, (SiglipConfig, PerceptionConfig))
    assert experiment.method_config.dim == card.dim == shape.dim
    assert experiment.data.frames.size == card.image_size == shape.vision.image_size
    assert experiment.data.frames.resize == "stretch"
    assert experiment.data.max_words <= shape.text.context_length


@pytest.mark.parametrize("family", ["siglip", "perception"])
def test_the_loss_starts_from_the_tower_where_it_has_scale_and_bias(family: str) -> None:
    """On shrunken towers of random weights, whose scale and bias are those of SigLIP's start."""
    recipe = Recipe("eaglenet", "msrvtt", "siglip2-b16" if family == "siglip" else "pe-b16").build()
    config: object = SiglipConfig(
        SiglipVisionConfig(16, 8, 12, 1, 2, 20), SiglipTextConfig(700, 19, 10, 1, 2, 14)
    )
    if family == "perception":
        vision = PerceptionVisionConfig(16, 8, 24, 1, 2, 20, pooling_heads=3)
        config = PerceptionConfig(12, vision, TextConfig(700, 19, 10, 1, 2, 14))
    small = dataclasses.replace(
        recipe,
        encoder=EncoderChoice(family, "demo", config),
        method_config=dataclasses.replace(recipe.method_config, dim=12),
    )
    loss = build_method(small).loss
    start = (loss.temperature.item(), loss.bias.item())  # type: ignore[union-attr]
    expected = (2.302585, -10.0) if family == "siglip" else (4.77, -12.93)
    assert start == pytest.approx(expected)
