"""How the features of a clip lie in a record."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from eaglenet.core.errors import StoreError
from eaglenet.core.types import VideoFeatures
from eaglenet.search.store.layout import FeatureLayout


def test_records_give_back_every_field_of_the_features() -> None:
    generator = torch.Generator().manual_seed(0)
    features = VideoFeatures(
        frames=torch.randn(3, 5, 8, generator=generator),
        mask=torch.rand(3, 5, generator=generator) > 0.5,
        tokens=torch.randn(3, 7, 8, generator=generator),
        tokens_mask=torch.rand(3, 7, generator=generator) > 0.5,
    )
    layout = FeatureLayout.of(features)
    layout = FeatureLayout.from_json(json.loads(json.dumps(layout.to_json())))
    seconds = torch.rand(3, 5, generator=generator)
    stored = layout.unpack(layout.pack(features, seconds))
    for name in ("frames", "tokens"):
        # Kept in half precision: 11 bits.
        expected = getattr(features, name)
        torch.testing.assert_close(getattr(stored.features, name), expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(stored.features.mask, features.mask)
    assert stored.features.tokens_mask is not None
    assert torch.equal(stored.features.tokens_mask, features.tokens_mask)
    assert torch.equal(stored.seconds, seconds)
    with pytest.raises(StoreError, match="new store"):
        layout.pack(
            dataclasses.replace(features, tokens=features.tokens[:, :6], tokens_mask=None), seconds
        )
