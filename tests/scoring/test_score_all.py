"""What ``score_all`` does around a back end: the choice, top-k, its manners."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from scoring_cases import DIM, RELEASED, largest_difference, model, texts, videos

from eaglenet.core.errors import ConfigError, UsageError
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS, Method
from eaglenet.scoring import TopK, choose, score_all, score_best
from eaglenet.scoring.eaglenet import scorers
from eaglenet.scoring.eaglenet.scorers import FactorisedScorer, KernelScorer
from eaglenet.scoring.scorer import ReferenceScorer


def other_method(name: str = "xpool") -> Method:
    torch.manual_seed(0)
    encoder = FeatureEncoder(FeatureConfig(text_dim=DIM, frame_dim=DIM, dim=DIM, identity=True))
    spec = METHODS[name]
    return spec.build(spec.config_class(), encoder).eval()


@pytest.mark.parametrize("backend", ["reference", "factorised"])
@pytest.mark.parametrize("top_k", [1, 3, 11, 40])
def test_a_streamed_top_k_is_the_top_k_of_the_matrix(backend: str, top_k: int) -> None:
    method, text, video = model(), texts(5), videos(11)
    matrix = score_all(method, text, video, backend=backend)
    best = score_best(method, text, video, top_k, backend=backend, tile_texts=2, tile_videos=3)
    expected = matrix.topk(min(top_k, 11), dim=1)
    assert isinstance(best, TopK)
    assert torch.equal(best.videos, expected.indices)
    assert largest_difference(best.scores, expected.values) < 1e-6


@pytest.mark.parametrize("name", ["clip4clip", "xpool", "tmass"])
def test_other_methods_are_scored_by_themselves(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    method, text, video = other_method(name), texts(), videos()
    with caplog.at_level(logging.INFO, logger="eaglenet.scoring"):
        scores = score_all(method, text, video, tile_texts=2, tile_videos=3)
    assert largest_difference(scores, method.score(text, video).detach()) < 1e-6
    assert f"reference back end: {name} has no factorised form" in caplog.text


def test_eaglenet_without_a_graph_is_scored_by_itself() -> None:
    assert isinstance(choose(model(relation_learning=False), videos()), ReferenceScorer)


@pytest.mark.parametrize("backend", ["factorised", "kernel"])
def test_a_forced_back_end_refuses_other_methods(backend: str) -> None:
    with pytest.raises(UsageError, match=f"the {backend} back end cannot score this model: xpool"):
        score_all(other_method(), texts(), videos(), backend=backend)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_layers": 1}, "2 graph layers, not 1"),
        ({"num_layers": 3}, "2 graph layers, not 3"),
        ({"dim": 48}, "at least 16, not 48"),
        ({"head_size": "split", "num_heads": 4}, "at least 16, not 8"),
        ({"num_candidates": 64}, "at most 64 text nodes, not 65"),
    ],
)
def test_a_forced_kernel_says_what_it_cannot_do(changes: dict[str, Any], reason: str) -> None:
    pytest.importorskip("triton")
    method = model(**changes)
    with pytest.raises(UsageError, match=reason):
        choose(method, videos(dim=method.config.dim), backend="kernel")


def test_a_forced_kernel_refuses_more_frames_than_fit() -> None:
    pytest.importorskip("triton")
    with pytest.raises(UsageError, match="at most 64 frames, not 65"):
        choose(model(num_frames=65), videos(frames=65), backend="kernel")


def test_a_forced_kernel_without_a_device_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = pytest.importorskip("eaglenet.scoring.eaglenet.kernel")
    monkeypatch.setattr(kernel, "is_interpreted", lambda: False)
    with pytest.raises(UsageError, match="need a CUDA device"):
        choose(model(), videos(), backend="kernel")


def test_a_forced_kernel_without_triton_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scorers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'eaglenet\[triton\]'"):
        choose(model(), videos(), backend="kernel")


@pytest.mark.parametrize(
    ("backend", "kind", "reason"),
    [
        ("auto", FactorisedScorer, "factorised back end: features are on cpu"),
        ("factorised", FactorisedScorer, "factorised back end: requested"),
        ("reference", ReferenceScorer, "reference back end: requested"),
        ("kernel", KernelScorer, "kernel back end: requested"),
    ],
)
def test_the_choice_is_explained(
    backend: str, kind: type, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    if backend == "kernel":
        pytest.importorskip("triton")
    with caplog.at_level(logging.INFO, logger="eaglenet.scoring"):
        assert isinstance(choose(model(), videos(), backend=backend), kind)
    assert reason in caplog.text


@pytest.mark.parametrize("training", [True, False])
def test_the_methods_mode_is_kept(training: bool) -> None:
    method = model().train(training)
    dropout_free = model().score(texts(), videos()).detach()
    for backend in ("reference", "factorised"):
        scores = score_all(method, texts(), videos(), backend=backend)
        assert largest_difference(scores, dropout_free) < 1e-6
        assert method.training is training


def test_the_methods_mode_is_kept_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    method = model().train()
    monkeypatch.setattr(FactorisedScorer, "score", _fail)
    with pytest.raises(RuntimeError, match="stop"):
        score_all(method, texts(), videos())
    assert method.training


def _fail(*_: Any) -> None:
    raise RuntimeError("stop")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "fastest"}, "back end 'fastest'; choose one of auto, reference"),
        ({"precision": "fp8"}, "precision 'fp8'; choose one of fp32, bf16"),
        ({"tile_texts": -1}, "tiles of -1 texts"),
    ],
)
def test_wrong_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        score_all(model(), texts(), videos(), **changes)


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(UsageError, match="number of best videos is 0"):
        score_best(model(), texts(), videos(), 0)
    with pytest.raises(UsageError, match="0 texts and 4 videos"):
        score_all(model(), texts()[:0], videos())


@pytest.mark.parametrize("backend", ["reference", "factorised"])
def test_more_frames_than_the_model_has_room_for_are_refused(backend: str) -> None:
    with pytest.raises(ConfigError, match="videos have 7 frames, but the model was built for 5"):
        score_all(model(), texts(), videos(frames=7), backend=backend)


@pytest.mark.parametrize("options", [{}, RELEASED, {"graph": "gat", "edge_weights": "activated"}])
def test_what_an_index_keeps_of_each_video_scores_any_shortlist(options: dict[str, Any]) -> None:
    method, text, video = model(**options), texts(), videos(7)
    scorer = choose(method, video)
    prepared_videos = scorer.prepare(video)
    assert all(len(value) == len(video) for value in prepared_videos.values())
    shortlist = torch.tensor([5, 0, 3])
    rows = {name: value[shortlist] for name, value in prepared_videos.items()}
    with torch.no_grad():
        scores = scorer.score(text, rows)
        expected = method.score(text, video[shortlist])
    assert largest_difference(scores, expected) < 1e-6


def test_memory_holds_one_tile_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: set[tuple[int, int]] = set()
    plain = FactorisedScorer.score

    def watch(self: FactorisedScorer, text: Any, prepared: Any) -> Any:
        shapes.add((len(text), len(prepared["mask"])))
        return plain(self, text, prepared)

    monkeypatch.setattr(FactorisedScorer, "score", watch)
    score_best(model(), texts(7), videos(11), 2, tile_texts=4, tile_videos=5)
    assert shapes == {(4, 5), (3, 5), (4, 1), (3, 1)}
