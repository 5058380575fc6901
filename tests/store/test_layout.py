"""Features of a clip are one record, and come back as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from eaglenet.core.errors import StoreError
from eaglenet.core.types import VideoFeatures
from eaglenet.store.manifest import Layout, feature_arrays, video_features


def make_features(tokens: int = 7) -> tuple[VideoFeatures, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    features = VideoFeatures(
        frames=torch.randn(3, 5, 8, generator=generator),
        mask=torch.rand(3, 5, generator=generator) > 0.5,
        tokens=torch.randn(3, tokens, 8, generator=generator),
        tokens_mask=torch.rand(3, tokens, generator=generator) > 0.5,
    )
    return features, torch.rand(3, 5, generator=generator)


def test_records_give_back_every_field_of_the_features() -> None:
    features, seconds = make_features()
    scorer_values = {"keys": torch.randn(3, 2, 4)}
    arrays = feature_arrays(features, seconds, scorer_values)
    layout = Layout.from_json(json.loads(json.dumps(Layout.of(arrays).to_json())))
    assert (layout.num_frames, layout.has_prepared) == (5, True)
    features_again, times, again = video_features(layout.unpack(layout.pack(arrays)))
    for name in ("frames", "tokens"):
        # Kept in half precision: 11 bits.
        expected = getattr(features, name)
        torch.testing.assert_close(getattr(features_again, name), expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(features_again.mask, features.mask)
    assert features_again.tokens_mask is not None
    assert torch.equal(features_again.tokens_mask, features.tokens_mask)
    assert torch.equal(times, seconds)
    torch.testing.assert_close(again["keys"], scorer_values["keys"], rtol=1e-3, atol=1e-4)


def test_features_of_another_shape_are_refused() -> None:
    layout = Layout.of(feature_arrays(*make_features()))
    with pytest.raises(StoreError, match="new store"):
        layout.pack(feature_arrays(*make_features(tokens=6)))


FRAMES, MASK, SECONDS = (
    ["frames", "<f2", [2, 8]], ["mask", "|b1", [2]], ["seconds", "<f4", [2]]
)  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [FRAMES, MASK],
        [FRAMES, MASK, ["seconds", "|O", [2]]],
        [["frames", "<f2", [2, -8]], MASK, SECONDS],
        [["frames", "<f2", [2, 10**9]], MASK, SECONDS],
        [["frames", "<f2", [16]], MASK, SECONDS],
        [["frames", "<f2", [2, 999_999]], MASK, ["seconds", "<f4", [999_999, 999]]],
        [FRAMES, MASK, SECONDS, ["__class__", "<f4", [1]]],
    ],
)
def test_impossible_layouts_are_refused(fields: list[list[object]]) -> None:
    with pytest.raises((ValueError, TypeError)):
        Layout.from_json(fields)
    assert Layout.from_json([FRAMES, MASK, SECONDS]).dtype.itemsize == np.dtype("f2").itemsize * 21
