"""What holds of every model that is loaded for texts alone, whatever its files look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import torch

import eaglenet
from eaglenet.encoders.base import TowerEncoder
from eaglenet.encoders.weights import _MappedFile
from eaglenet.models.folder import load_for_texts
from eaglenet.search.torch_model import model_identity, release_image_tower

SENTENCES = ["a red car", "red ball"]
IMAGE_TOWER = "vis"
"""In the name of every weight of an image tower, in every layout, and in no other's."""


def load_spied(location: Path) -> tuple[eaglenet.Method, list[str]]:
    """The model for texts, and the weights of its files that were read for that."""
    names: list[str] = []
    plain = _MappedFile.read

    def spy(self: Any, name: str) -> torch.Tensor:
        names.append(name)
        return plain(self, name)

    with mock.patch.object(_MappedFile, "read", spy):
        method = load_for_texts(location)
    return method, names


def check_texts_alone(location: Path) -> None:
    """No image tower is read or made; the model is known, and its sentences are the same."""
    whole = eaglenet.load(location)
    method, names = load_spied(location)
    assert [name for name in names if IMAGE_TOWER in name] == []
    assert isinstance(method.encoder, TowerEncoder)
    image_tower = {id(each) for each in method.encoder.vision.parameters()}
    for name, weight in method.named_parameters():
        is_unknown = not weight.is_meta and not weight.any()  # a bias of zeros that no file has
        assert is_unknown or weight.is_meta == (id(weight) in image_tower), name
    assert model_identity(method) == model_identity(whole)
    release_image_tower(method, str(location))
    for name, value in method.state_dict().items():
        assert value.is_meta or torch.equal(value, whole.state_dict()[name]), name
        assert value.shape == whole.state_dict()[name].shape
    assert method.tokenizer is not None
    tokens = method.tokenizer(SENTENCES, min(32, method.encoder.context_length))
    first, second = (each.encode_text(tokens).sentence for each in (method, whole))
    assert torch.equal(first, second)
