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
    """A copy from a GPU that is not waited for reads as zeros: videos without frames."""
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
    """In one place: the record's own description."""
    told = set(re.findall(r"\w+", record.__doc__ or ""))
    for field in dataclasses.fields(record):
        if field.name in NEEDED:
            assert field.default is dataclasses.MISSING
            continue
        assert field.default is None, field.name
        assert "None" in str(field.type), field.name
        # A mask belongs to what it masks; patches are named by what they are.
        assert field.name.removesuffix("_mask") in told, field.name
