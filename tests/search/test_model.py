"""The model of a store: which one it is."""

from __future__ import annotations

import dataclasses

from eaglenet.search.torch_model import model_identity
from synthetic_store import (
    BagMethod,
)


def test_model_identity_depends_on_weights_and_configuration(bag: BagMethod) -> None:
    assert model_identity(BagMethod()) == model_identity(bag)
    assert model_identity(BagMethod(seed=1)) != model_identity(bag)
    other = BagMethod()
    other.config = dataclasses.replace(other.config, sharpness=2.0)
    assert model_identity(other) != model_identity(bag)
