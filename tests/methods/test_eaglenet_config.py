"""The presets say what the paper and the released scripts say."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest

from eaglenet.core.errors import ConfigError, UnknownNameError
from eaglenet.methods.eaglenet import EagleNetConfig


def test_the_paper_preset_has_the_papers_numbers() -> None:
    config = EagleNetConfig()
    assert (config.dim, config.num_frames, config.num_candidates) == (512, 12, 20)
    assert (config.num_layers, config.num_heads, config.head_size) == (2, 4, "full")
    assert (config.langevin_steps, config.langevin_step_size) == (20, 1.0)
    assert (config.langevin_noise, config.noise_scale) == (0.005, "variance")
    assert (config.prior, config.energy, config.energy_pooling) == ("normal", "bilinear", "mean")
    assert (config.support_weight, config.energy_weight, config.loss) == (0.8, 1.0, "sigmoid")
    assert (config.edge_weights, config.edge_direction) == ("raw", "text_to_frame")
    assert not config.token_shift
    assert not config.energy_in_batch
    assert config.mask_frames


@pytest.mark.parametrize(
    ("dataset", "energy", "position", "support_energy", "frames"),
    [
        ("msrvtt-b32", "mlp", False, 0.0, 12),
        ("msrvtt-b16", "bilinear", True, 1.0, 12),
        ("didemo", "mlp", True, 0.0, 64),
        ("msvd", "mlp", False, 1.0, 12),
        ("vatex", "mlp", True, 1.0, 12),
    ],
)
def test_released_scripts_differ_by_dataset(
    dataset: str, energy: str, position: bool, support_energy: float, frames: int
) -> None:
    config = EagleNetConfig.for_script(dataset)
    assert config.energy == energy
    assert config.frame_position == position
    assert config.energy_support_weight == support_energy
    assert config.num_frames == frames
    assert (config.prior, config.support, config.noise_scale) == ("uniform", "batch", "std")
    assert (config.head_size, config.graph_dropout) == ("split", 0.5)
    assert (config.edge_weights, config.edge_direction) == ("activated", "frame_to_text")
    assert config.token_shift
    assert config.energy_in_batch
    assert not config.mask_frames


def test_an_ablation_is_one_line() -> None:
    config = replace(EagleNetConfig(), energy="mlp", graph="gat", frame_edges=False)
    assert (config.energy, config.graph, config.frame_edges) == ("mlp", "gat", False)
    assert replace(config, energy=None).energy is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "energy",
            "cossim",
            "energy is 'cossim'; expected 'cosine' or 'bilinear' or 'mlp' or none",
        ),
        ("graph", "gatv2", "graph is 'gatv2'; expected 'rgat' or 'gat'"),
        ("num_layers", 0, "num_layers is 0; it must be 1 or more"),
    ],
)
def test_wrong_values_are_refused_with_the_right_ones(
    name: str, value: object, message: str
) -> None:
    """Set behind the shape checker of the tests, which would refuse them first."""
    config = EagleNetConfig()
    object.__setattr__(config, name, value)
    with pytest.raises(ConfigError) as error:
        config.__post_init__()
    assert str(error.value) == message


def test_a_dataset_without_a_released_script_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="msrvtt-b32"):
        EagleNetConfig.for_script("lsmdc")


def test_a_config_survives_json() -> None:
    config = EagleNetConfig.for_script("vatex")
    assert EagleNetConfig(**json.loads(json.dumps(asdict(config)))) == config
