"""Exact scores from what a store keeps."""

from __future__ import annotations

from pathlib import Path

import torch

from eaglenet.core.types import TextFeatures, VideoFeatures


def test_stored_scorer_data_does_not_change_scores(tmp_path: Path) -> None:
    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
    from eaglenet.methods.eaglenet import build
    from eaglenet.methods.eaglenet_config import EagleNetConfig
    from eaglenet.search.reranking import Reranker, prepare_for_store
    from eaglenet.search.store.layout import FeatureLayout

    torch.manual_seed(0)
    config = EagleNetConfig.paper(dim=16, num_frames=5, num_candidates=3, num_heads=2)
    encoder = FeatureEncoder(FeatureConfig(text_dim=16, frame_dim=16, dim=16))
    method = build(config, encoder).eval()
    features = VideoFeatures(torch.randn(7, 5, 16), torch.rand(7, 5) > 0.2)
    text = TextFeatures(torch.randn(3, 16))
    with torch.no_grad():
        expected = method.score(text, features)
    for prepared in (None, prepare_for_store(method, features)):
        layout = FeatureLayout.of(features, prepared)
        assert layout.has_prepared == (prepared is not None)
        clips = layout.unpack(layout.pack(features, torch.zeros(7, 5), prepared))
        # Stored in half precision: 11 bits.
        torch.testing.assert_close(Reranker(method).score(text, clips), expected, rtol=0, atol=2e-3)


def test_cached_clips_do_not_change_scores() -> None:
    """Clips that were scored before and clips that were not, in one shortlist."""
    from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
    from eaglenet.methods.eaglenet import build
    from eaglenet.methods.eaglenet_config import EagleNetConfig
    from eaglenet.search.reranking import Reranker
    from eaglenet.search.store.layout import StoredClips

    torch.manual_seed(0)
    config = EagleNetConfig.paper(dim=16, num_frames=5, num_candidates=3, num_heads=2)
    encoder = FeatureEncoder(FeatureConfig(text_dim=16, frame_dim=16, dim=16))
    method = build(config, encoder).eval()
    features = VideoFeatures(torch.randn(7, 5, 16), torch.rand(7, 5) > 0.2)
    text = TextFeatures(torch.randn(3, 16))
    reranker = Reranker(method)
    for rows in ([1, 4, 6], [6, 0, 4, 2], [5, 6, 1]):
        clips = StoredClips(features[rows], torch.zeros(len(rows), 5), {})
        prepared = reranker.prepare(clips, rows)
        assert prepared.prepared
        with torch.no_grad():
            expected = method.score(text, features[rows])
        torch.testing.assert_close(reranker.score(text, prepared), expected)
    assert len(reranker._cache) == 6
