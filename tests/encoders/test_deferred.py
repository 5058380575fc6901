"""Deferred weights have the same values as weights that are read at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from eaglenet.core.errors import CheckpointError, UsageError
from eaglenet.encoders import weights as module
from eaglenet.encoders.weights import (
    DeferredTensor,
    defer_tensor,
    is_deferred,
    is_on_demand,
    materialise,
    read_safetensors,
    read_weight_file,
    reading_on_demand,
    release_weights,
)

VALUES = torch.arange(24.0).reshape(6, 4).half()


def deferred_weight(values: Tensor = VALUES) -> tuple[DeferredTensor, list[int]]:
    """Return a deferred weight, and a list that grows with each read."""
    reads: list[int] = []

    def read() -> Tensor:
        reads.append(1)
        return values

    return defer_tensor(values, read), reads


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.T,
        lambda w: w.detach().reshape(-1)[::5],
        lambda w: w.flatten(),
        lambda w: w[0],
        lambda w: w.chunk(3)[1],
        lambda w: torch.cat([w, w.chunk(2)[0]]),
        lambda w: torch.as_strided(w.reshape(-1), (2, 3), (3, 1), 4),
        lambda w: w.to(torch.float32).T.reshape(-1),
        lambda w: w.float() * w.float()[:, :1],
    ],
)
def test_what_is_noted_down_gives_the_same_values_later(change: Callable[[Any], Any]) -> None:
    weight, reads = deferred_weight()
    result, expected = change(weight), change(VALUES)
    assert isinstance(result, DeferredTensor)
    assert (result.shape, result.dtype) == (expected.shape, expected.dtype)
    assert reads == []
    assert torch.equal(result.read(), expected)
    assert reads


def test_anything_else_is_computed_with_the_values() -> None:
    weight, _ = deferred_weight()
    for result in (weight.clone(), weight.to("cpu", torch.float16), weight + 0, 1 * weight):
        assert type(result) is Tensor
        assert torch.equal(result, VALUES)
    assert torch.equal(torch.cat([weight, VALUES]), torch.cat([VALUES, VALUES]))
    assert torch.equal(weight.to(dtype=torch.float32), VALUES.float())
    target = torch.zeros(6, 4)
    assert torch.equal(target.copy_(weight), VALUES.float())
    with pytest.raises(UsageError, match="zero_: a weight that is read on demand"):
        weight.zero_()


def test_a_few_values_are_looked_up_before_casting() -> None:
    weight, _ = deferred_weight()
    few = weight.to(torch.float32).reshape(-1)[::12]
    assert few._before_cast is not None
    assert few._before_cast.shape == few.shape


def test_a_module_is_filled_without_values_realised_and_forgotten(tmp_path: Path) -> None:
    layer = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    layer[0].bias.requires_grad_(False)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(layer.state_dict(), path)
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    assert not is_on_demand()
    with reading_on_demand():
        empty.load_state_dict(read_safetensors(path), assign=True)
    assert not is_on_demand()
    assert is_deferred(empty)
    materialise(empty, without=empty[1])
    assert type(empty[0].weight) is nn.Parameter
    assert is_deferred(empty[1])
    materialise(empty)
    assert not is_deferred(empty)
    with path.open("r+b") as stream:  # In place, since the file is not read again.
        stream.write(bytes(path.stat().st_size))
    for name, value in empty.state_dict().items():
        assert torch.equal(value, layer.state_dict()[name])
    release_weights(empty)
    assert all(each.is_meta for each in empty.state_dict().values())


def test_few_pages_of_a_large_file_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is mapped again after some bytes; values that were read before do not change."""
    path = tmp_path / "model.safetensors"
    expected = {str(number): torch.full((8,), float(number)) for number in range(9)}
    safetensors.torch.save_file(expected, path)
    openings = []
    plain = safetensors.safe_open

    def spy(*args: Any, **options: Any) -> Any:
        openings.append(1)
        return plain(*args, **options)

    monkeypatch.setattr(module, "MAPPED_BYTES", 80)
    with reading_on_demand():
        weights = read_weight_file(path)
    monkeypatch.setattr(safetensors, "safe_open", spy)
    values = {name: weight.read() for name, weight in weights.items()}  # type: ignore[attr-defined]
    assert len(openings) == 2
    assert all(torch.equal(values[name], expected[name]) for name in expected)


def test_a_file_that_went_away_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAPPED_BYTES", -1)
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"weight": VALUES.clone()}, path)
    with reading_on_demand():
        weight = read_weight_file(path)["weight"]
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: weight cannot be read"):
        weight.clone()
