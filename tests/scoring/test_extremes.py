"""Back ends agree where numbers are extreme and callers unusual, and what is wrong shows."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch
from scoring_cases import DIM, FRAMES, RELEASED, largest_difference, model, texts, videos

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.encoders.features import FeatureConfig, FeatureEncoder
from eaglenet.methods import METHODS
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.scoring import choose, score_all
from sampling import one_in


def has_kernel() -> bool:
    """Whether the kernels run here: Triton is there, and its interpreter is on."""
    if importlib.util.find_spec("triton") is None:
        return False
    from eaglenet.scoring.eaglenet.kernel import is_interpreted

    return is_interpreted()


BACKENDS = ["factorised", "kernel"] if has_kernel() else ["factorised"]
every_backend = pytest.mark.parametrize("backend", BACKENDS)
WIDE = 128


def off(method: EagleNet, text: TextFeatures, video: VideoFeatures, backend: str) -> float:
    expected = method.score(text, video).detach()
    assert torch.isfinite(expected).all()
    return largest_difference(score_all(method, text, video, backend=backend), expected)


def make_scaled(name: str, factor: float, **options: Any) -> EagleNet:
    method = model(**{**RELEASED, **options})
    with torch.no_grad():
        method.get_parameter(name).mul_(factor)
    return method


@every_backend
@pytest.mark.parametrize(
    "name", one_in(2, ["graph.layers.0.text_text.query", "graph.layers.0.text_frame.key"])
)
def test_attention_as_sharp_as_a_choice_does_not_overflow(backend: str, name: str) -> None:
    # The softmax picks one node, where rounding hardly matters.
    assert off(make_scaled(name, 500.0), texts(1), videos(2), backend) < 1e-4


@every_backend
def test_edge_weights_may_be_huge(backend: str) -> None:
    method = make_scaled("graph.edges.relation.projection.weight", 1e5)
    assert torch.isfinite(score_all(method, texts(1), videos(2), backend=backend)).all()


@every_backend
@pytest.mark.parametrize("factor", one_in(2, [100.0, 30.0]))
def test_sharp_weights_of_the_candidates_agree(backend: str, factor: float) -> None:
    # Logits of the candidates differ by 3 and 10.
    name = "graph.edges.relation.projection.weight"
    method = make_scaled(name, factor, dim=WIDE, num_heads=4)
    assert off(method, texts(1, dim=WIDE), videos(2, dim=WIDE), backend) < 1e-5


@every_backend
def test_a_pooling_that_gives_nothing_is_finite(backend: str) -> None:
    method = model(**RELEASED)
    with torch.no_grad():
        for layer in (method.pooling.attention_norm, method.pooling.feed_forward):
            layer.weight.zero_()
            layer.bias.zero_()
    assert off(method, texts(1), videos(2), backend) < 1e-5


@every_backend
def test_padded_frames_stay_out_of_a_sharp_pooling(backend: str) -> None:
    method = make_scaled("pooling.key.weight", 1000.0, mask_frames=True)
    assert off(method, texts(1), videos(2), backend) < 1e-4


@every_backend
@pytest.mark.parametrize(("text_size", "frame_size"), one_in(2, [(1e-8, 1.0), (1.0, 1e-8)]))
def test_features_of_nearly_no_length_agree(
    backend: str, text_size: float, frame_size: float
) -> None:
    method, text, video = model(**RELEASED), texts(1), videos(2)
    text = TextFeatures(text_size * text.sentence)
    video = VideoFeatures(frame_size * video.frames, video.mask)
    assert off(method, text, video, backend) < 1e-5


@every_backend
def test_features_may_have_any_strides(backend: str) -> None:
    method = model(**{**RELEASED, "mask_frames": True})
    wide = videos(3, frames=9)
    cut = VideoFeatures(wide.frames[:, :FRAMES], wide.mask[:, :FRAMES])
    transposed_text = TextFeatures(torch.randn(DIM, 2).T)
    assert off(method, transposed_text, cut, backend) < 1e-5


@every_backend
def test_any_selection_of_prepared_rows_is_scored(backend: str) -> None:
    method, text, video = model(**{**RELEASED, "mask_frames": True}), texts(1), videos(4)
    scorer = choose(method, video, backend=backend)
    rows = {name: value[::2] for name, value in scorer.prepare(video).items()}
    with torch.no_grad():
        expected = method.score(text, video)[:, ::2]
    assert largest_difference(scorer.score(text, rows), expected) < 1e-5


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
@pytest.mark.parametrize(
    "name",
    one_in(2, ["graph.layers.0.text_text.projection.weight", "graph.layers.0.residual.weight",
               "pooling.value.weight", "graph.position"]),
)  # fmt: skip
def test_a_broken_model_has_no_plausible_scores(backend: str, name: str) -> None:
    method = make_scaled(name, float("nan"))
    scores = score_all(method, texts(1), videos(2), backend=backend)
    assert scores.isnan().all()


@pytest.mark.parametrize("backend", ["reference", *BACKENDS])
def test_a_callers_precision_does_not_reach_the_scores(backend: str) -> None:
    method, text, video = model(**RELEASED), texts(1), videos(2)
    expected = score_all(method, text, video, backend=backend)
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", torch.bfloat16):
            scores = score_all(method, text, video, backend=backend)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(previous)
    assert torch.equal(scores, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["eaglenet", "xpool"])
def test_features_of_any_precision_are_scored(name: str, dtype: torch.dtype) -> None:
    encoder = FeatureEncoder(FeatureConfig(DIM, DIM, DIM, identity=True))
    spec = METHODS[name]
    sizes = {"dim": DIM, "num_heads": 2} if name == "eaglenet" else {}
    method = spec.build(spec.config_class(**sizes), encoder).eval()
    text, video = texts(2), videos(3)
    expected = score_all(method, text, video, backend="reference")
    features = text.to("cpu", dtype), video.to("cpu", dtype)
    assert largest_difference(score_all(method, *features, backend="reference"), expected) < 2e-2
    assert score_all(method, *features).dtype == torch.float32


def test_modules_keep_their_own_modes() -> None:
    method = model(**RELEASED).train()
    method.pooling.eval()
    score_all(method, texts(1), videos(1))
    assert method.training
    assert method.graph.training
    assert not method.pooling.training


@pytest.mark.parametrize("name", ["tile_texts", "tile_videos"])
def test_a_tile_of_nothing_is_refused(name: str) -> None:
    tile: dict[str, Any] = {name: 0}
    with pytest.raises(UsageError, match="both must be 1 or more"):
        score_all(model(), texts(1), videos(1), **tile)


def test_nothing_to_score_is_refused() -> None:
    with pytest.raises(UsageError, match="3 texts and 0 videos"):
        score_all(model(), texts(3), videos(4)[:0])
    empty = VideoFeatures(torch.zeros(2, 0, DIM), torch.zeros(2, 0, dtype=torch.bool))
    with pytest.raises(UsageError, match="0 frames"):
        score_all(model(), texts(1), empty)


def test_sixty_four_frames_go_to_the_kernel() -> None:
    if not has_kernel():
        pytest.skip("Triton is not installed, or TRITON_INTERPRET is not 1")
    video = videos(1, frames=64)
    assert choose(model(num_frames=64, **RELEASED), video, backend="kernel").tile_videos >= 1
    with pytest.raises(UsageError, match="at most 64 frames, not 65"):
        choose(model(num_frames=65, **RELEASED), videos(1, frames=65), backend="kernel")


def test_half_precision_finds_the_same_first_video_where_it_is_clear() -> None:
    method = model(**RELEASED, dim=WIDE, num_heads=4)
    text, video = texts(24, dim=WIDE), videos(15, dim=WIDE)
    expected = score_all(method, text, video)
    half = score_all(method, text, video, precision="bf16")
    best = expected.topk(2, dim=1)
    is_clear = best.values[:, 0] - best.values[:, 1] > 3e-3
    assert is_clear.sum() > 12
    assert torch.equal(half.argmax(dim=1)[is_clear], best.indices[is_clear, 0])
    assert largest_difference(half, expected) < 3e-3


def test_progress_ends_at_all_pairs() -> None:
    calls: list[tuple[int, int]] = []
    score_all(
        model(), texts(5), videos(7), tile_texts=2, tile_videos=3,
        progress=lambda work: calls.append((work.count, work.total)),
    )  # fmt: skip
    assert [num_pairs for num_pairs, _ in calls] == sorted({num_pairs for num_pairs, _ in calls})
    assert calls[-1] == (35, 35)
    assert len(calls) == 9
