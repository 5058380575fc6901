"""The shipped demo model is the main method, with the settings of its recipe."""

from __future__ import annotations

import dataclasses

import torch

import eaglenet
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.research.recipes import Recipe


def test_the_demo_model_has_the_settings_of_its_recipe() -> None:
    experiment = Recipe("eaglenet", "demo").build()
    model = eaglenet.load("demo")
    assert model.config == experiment.method_config
    assert model.config.edge_weights == "activated"
    assert model.frame_spec == experiment.data.frames


def test_frame_to_frame_relations_change_its_scores() -> None:
    model = eaglenet.load("demo").eval()
    assert isinstance(model, EagleNet)
    generator = torch.Generator().manual_seed(0)
    frames = torch.randn(3, 8, 64, generator=generator)
    video = VideoFeatures(frames, torch.ones(3, 8, dtype=torch.bool))
    text = TextFeatures(torch.randn(2, 64, generator=generator))
    without = EagleNet(model.encoder, dataclasses.replace(model.config, frame_edges=False)).eval()
    without.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        assert (model.score(text, video) - without.score(text, video)).abs().max() > 1e-4
