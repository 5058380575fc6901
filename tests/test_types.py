"""Tensor records."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from eaglenet.core.types import PairBatch, TextFeatures, VideoFeatures


@pytest.mark.parametrize(("device", "can_copy_async"), [("cpu", False), ("meta", True)])
def test_copies_to_the_host_are_blocking(
    device: str, can_copy_async: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until an asynchronous copy from a GPU ends, the data reads as zeros."""
    asked: list[bool] = []
    original = Tensor.to

    def spy(tensor: Tensor, *arguments: Any, **options: Any) -> Tensor:
        asked.append(bool(options.get("non_blocking", False)))
        return original(tensor, *arguments, **options)

    text = TextFeatures(torch.ones(2, 3))
    video = VideoFeatures(torch.ones(2, 4, 3), torch.ones(2, 4, dtype=torch.bool))
    batch = PairBatch(text, video, torch.arange(2))
    monkeypatch.setattr(Tensor, "to", spy)
    batch.to(device)
    assert asked == [can_copy_async] * 4


NEEDED = {"sentence", "frames", "mask"}


@pytest.mark.parametrize("record", [TextFeatures, VideoFeatures])
def test_optional_fields_are_documented(record: type) -> None:
    """In the docstring of the record."""
    told = set(re.findall(r"\w+", record.__doc__ or ""))
    for field in dataclasses.fields(record):
        if field.name in NEEDED:
            assert field.default is dataclasses.MISSING
            continue
        assert field.default is None, field.name
        assert "None" in str(field.type), field.name
        # Masks are documented with their tensors; the name of patches is clear.
        assert field.name.removesuffix("_mask") in told, field.name
