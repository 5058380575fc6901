"""Settings that no model can be built from are refused by name, before anything else happens."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from eaglenet.core.errors import ConfigError
from eaglenet.methods import METHODS
from eaglenet.methods.configs import MethodConfig

IMPOSSIBLE: tuple[tuple[str, str, Any], ...] = (
    ("ce", "text_centres", 0),
    ("clip4clip", "pairs_at_once", 0),
    ("clipbert", "num_layers", 0),
    ("drl", "num_positions", -1),
    ("drl", "diagonal_weight", math.inf),
    ("eaglenet", "fresh_fraction", 1.5),
    ("eaglenet", "langevin_noise", -1.0),
    ("eaglenet", "pool_dropout", 1.0),
    ("eaglenet", "replay_size", 0),
    ("frozen", "temperature", 0.0),
    ("glscl", "num_concepts", 0),
    ("glscl", "num_decoder_layers", 0),
    ("hgr", "dim", 1),
    ("hgr", "word_dropout", -0.1),
    ("hit", "bank_size", 0),
    ("hit", "feature_weight", -1.0),
    ("hit", "momentum", 2.0),
    ("hit", "num_positions", 1),
    ("hit", "text_layers", 0),
    ("mmt", "num_layers", 0),
    ("mmt", "num_positions", 1),
    ("prost", "num_events", 0),
    ("prost", "num_objects", 0),
    ("prost", "num_phrases", 0),
    ("rap", "num_kept", 0),
    ("shenet", "num_selected", 0),
    ("supportset", "num_layers", 0),
    ("t2vlad", "num_centres", 0),
    ("t2vlad", "num_ghosts", -1),
    ("ts2net", "num_samples", 0),
    ("ts2net", "sigma", 0.0),
    ("ucofia", "num_samples", 0),
    ("ucofia", "temperature", 0.0),
    ("xpool", "dropout", 1.5),
    ("xpool", "dropout", math.nan),
)


@pytest.mark.parametrize(("method", "name", "value"), IMPOSSIBLE)
def test_an_impossible_number_is_refused_by_name(method: str, name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        dataclasses.replace(METHODS[method].config_class(), **{name: value})


def test_numbers_that_mean_something_are_kept() -> None:
    METHODS["clip4clip"].config_class(num_layers=0)
    METHODS["eaglenet"].config_class(energy=None, replay_size=0, noise_seed=-1)
    METHODS["mmt"].config_class(max_tokens=0)
    METHODS["tvproxynet"].config_class(text_sign=-1.0, leader_sign=-1.0)
    METHODS["wordframe"].config_class(num_layers=0, bank=0)


def test_a_method_of_a_user_may_have_other_numbers() -> None:
    @dataclasses.dataclass(frozen=True)
    class OwnConfig(MethodConfig):
        first_block: int = -1
        shift: float = 0.5
        dropout_samples: int = 4

    assert OwnConfig(first_block=-2, shift=-1.0).first_block == -2
