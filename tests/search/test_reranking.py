"""Exact scores from what a store keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods.base import Method
from eaglenet.methods.eaglenet import EagleNet, EagleNetConfig
from eaglenet.search.model import ClipFeatures
from eaglenet.search.torch_model import TorchModel, TorchTexts, prepare_for_store
from eaglenet.store.manifest import Layout, feature_arrays

SECONDS = torch.zeros(7, 5)


@pytest.fixture
def method() -> Method:
    torch.manual_seed(0)
    config = EagleNetConfig(dim=16, num_frames=5, num_candidates=3, num_heads=2)
    return EagleNet.build(
        config, FeatureEncoder(FeatureConfig(text_dim=16, frame_dim=16, dim=16))
    ).eval()


def make_videos() -> VideoFeatures:
    return VideoFeatures(torch.randn(7, 5, 16), torch.rand(7, 5) > 0.2)


def make_texts(method: Method) -> TorchTexts:
    text = TextFeatures(torch.randn(3, 16))
    return TorchTexts(text, method.coarse_vectors(text).numpy())


@torch.no_grad()
def test_stored_scorer_data_does_not_change_scores(method: Method) -> None:
    videos, texts = make_videos(), make_texts(method)
    expected = method.score(texts.features, videos).numpy()
    for prepared in (None, prepare_for_store(method, videos)):
        arrays = feature_arrays(videos, SECONDS, prepared)
        layout = Layout.of(arrays)
        assert layout.has_prepared == (prepared is not None)
        clips = ClipFeatures(layout.unpack(layout.pack(arrays)))
        # Stored in half precision: 11 bits.
        scores = TorchModel(method).score(texts, clips)
        np.testing.assert_allclose(scores, expected, rtol=0, atol=2e-3)


@torch.no_grad()
def test_cached_clips_do_not_change_scores(method: Method) -> None:
    """Clips that were scored before and clips that were not, in one shortlist."""
    videos, texts, model = make_videos(), make_texts(method), TorchModel(method)
    for rows in ([1, 4, 6], [6, 0, 4, 2], [5, 6, 1]):
        clips = ClipFeatures(feature_arrays(videos[rows], SECONDS[rows]), rows)
        expected = method.score(texts.features, videos[rows]).numpy()
        np.testing.assert_allclose(model.score(texts, clips), expected, rtol=0, atol=1e-5)
    assert len(model._cache) == 6


def test_no_clips_have_no_scores(method: Method) -> None:
    none = ClipFeatures(feature_arrays(make_videos()[[]], SECONDS[:0]), [])
    assert TorchModel(method).score(make_texts(method), none).shape == (3, 0)
