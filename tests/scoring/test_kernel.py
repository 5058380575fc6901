"""The Triton kernels give the method's own scores; here under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scoring_cases import RELEASED, largest_difference, model, texts, videos
from torch import Tensor

from eaglenet.core.errors import UsageError
from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.scoring import choose, score_all
from eaglenet.scoring.eaglenet.factorised import PreparedVideos
from eaglenet.scoring.eaglenet.launching import KernelLauncher, tuning_for
from eaglenet.scoring.eaglenet.plan import plan_of
from sampling import one_in

pytest.importorskip("triton")
from eaglenet.scoring.eaglenet.kernel import is_interpreted

# kernel_on_device.py does the same where there is a device.
pytestmark = pytest.mark.skipif(not is_interpreted(), reason="TRITON_INTERPRET is not 1")

PRECISE = 1e-5
HALF = 3e-3
CASES: dict[str, dict[str, Any]] = {
    "paper": {},
    "released": RELEASED,
    "released masked": {**RELEASED, "mask_frames": True},
    "gat": {"graph": "gat", "edge_weights": "activated", "head_size": "split"},
    "gat raw without frame edges": {"graph": "gat", "frame_edges": False},
    "four heads, own residuals": {
        "num_heads": 4,
        "dim": 64,
        "head_size": "split",
        "edge_weights": "activated",
        "frame_position": False,
    },
    "three heads of 16": {"num_heads": 3, "dim": 48, "head_size": "split"},
    "one candidate": {**RELEASED, "num_candidates": 1, "num_heads": 1},
}
MORE_CASES: dict[str, dict[str, Any]] = {
    f"{graph} {weights} {direction} {size} {heads} {edges} {masked}": {
        "graph": graph,
        "edge_weights": weights,
        "edge_direction": direction,
        "head_size": size,
        "shared_residual": size == "split",
        "num_heads": heads,
        "frame_edges": edges,
        "mask_frames": masked,
        "radius_bias": masked,
    }
    for graph in ("rgat", "gat")
    for weights in ("raw", "activated")
    for direction in ("text_to_frame", "frame_to_text")
    for size in ("full", "split")
    for heads in (1, 2)
    for edges in (True, False)
    for masked in (True, False)
}


def difference(
    options: dict[str, Any], precision: str, num_texts: int = 1, num_videos: int = 2
) -> float:
    method = model(**options)
    dim = method.config.dim
    text, video = texts(num_texts, dim=dim), videos(num_videos, dim=dim)
    expected = method.score(text, video).detach()
    scores = score_all(method, text, video, backend="kernel", precision=precision)
    return largest_difference(scores, expected)


@pytest.mark.parametrize("name", one_in(2, CASES))
def test_the_precise_kernel_agrees(name: str) -> None:
    """Several texts for one form of each graph: the interpreter runs pair by pair."""
    sizes = (2, 3) if name in ("paper", "gat") else (1, 2)
    assert difference(CASES[name], "fp32", *sizes) < PRECISE


@pytest.mark.parametrize("name", one_in(2, ["paper", "released", "gat"]))
def test_the_half_precision_kernel_stays_near(name: str) -> None:
    assert difference(CASES[name], "bf16") < HALF


def test_the_half_precision_kernel_stays_near_for_wide_features() -> None:
    """From 128 dimensions on the pooling is in half precision too."""
    assert difference({**RELEASED, "dim": 128, "num_heads": 4}, "bf16") < HALF


@pytest.mark.slow
@pytest.mark.parametrize("options", MORE_CASES.values(), ids=MORE_CASES.keys())
def test_the_kernel_agrees_over_the_grid(options: dict[str, Any]) -> None:
    assert difference(options, "fp32", num_videos=3) < PRECISE
    assert difference(options, "bf16", num_videos=3) < HALF


def test_uneven_tiles_of_the_kernel_agree() -> None:
    method, text, video = model(**RELEASED), texts(3), videos(4)
    scores = score_all(method, text, video, backend="kernel", tile_texts=2, tile_videos=3)
    assert largest_difference(scores, method.score(text, video).detach()) < PRECISE


@pytest.mark.parametrize("frames", [1, 3])
def test_the_kernel_takes_fewer_frames_than_the_model_has_room_for(frames: int) -> None:
    method, text = model(edge_weights="activated", head_size="split"), texts(1)
    video = videos(2, frames=frames)
    scores = score_all(method, text, video, backend="kernel")
    assert largest_difference(scores, method.score(text, video).detach()) < PRECISE


def test_the_kernel_scores_a_video_without_any_real_frame() -> None:
    method, text, video = model(edge_weights="activated"), texts(1), videos(2)
    video.mask[1] = False
    scores = score_all(method, text, video, backend="kernel")
    assert torch.isfinite(scores).all()
    assert largest_difference(scores, method.score(text, video).detach()) < PRECISE


def test_frames_may_outnumber_the_text_nodes() -> None:
    method = model(num_frames=19, num_candidates=2, **RELEASED)
    text, video = texts(1), videos(2, frames=19)
    scores = score_all(method, text, video, backend="kernel")
    assert largest_difference(scores, method.score(text, video).detach()) < PRECISE


def test_many_frames_in_fp32_cut_a_head_in_blocks_of_columns_with_the_same_scores() -> None:
    tuning = tuning_for(3, 40, precise=True)
    assert tuning.block < 128
    assert tuning.frame_tile < 40
    method = model(dim=128, num_heads=1, num_frames=40, num_candidates=2, edge_weights="activated")
    text, video = texts(1, dim=128), videos(2, frames=40, dim=128)
    expected = score_all(method, text, video, backend="reference")
    scores = score_all(method, text, video, backend="kernel")
    assert largest_difference(scores, expected) < 1e-5


def off(
    method: EagleNet, text: TextFeatures, video: VideoFeatures, precision: str = "fp32"
) -> float:
    scores = score_all(method, text, video, backend="kernel", precision=precision)
    assert torch.isfinite(scores).all()
    return largest_difference(scores, method.score(text, video).detach())


@pytest.mark.parametrize("shared", one_in(2, [False, True]))
def test_several_heads_may_be_wider_than_a_block_of_columns(shared: bool) -> None:
    changes = {"edge_weights": "activated", "shared_residual": shared}
    method = model(dim=128, num_heads=2, num_candidates=2, **changes)
    assert off(method, texts(1, dim=128), videos(2, dim=128)) < PRECISE


def test_a_slope_above_one_is_left_to_other_scorers() -> None:
    method = model(negative_slope=1.5, **RELEASED)
    assert type(choose(method, videos(2))).__name__ != "KernelScorer"
    with pytest.raises(UsageError, match="slopes from 0 to 1"):
        choose(method, videos(2), backend="kernel")


@pytest.mark.parametrize("graph", ["rgat", "gat"])
def test_the_kernel_takes_the_models_own_slope(graph: str) -> None:
    method = model(negative_slope=0.6, graph=graph, edge_weights="activated", head_size="split")
    assert off(method, texts(1), videos(2)) < PRECISE


def test_frames_that_prefer_frames_by_far_do_not_overflow() -> None:
    method = model(graph="gat", edge_weights="activated", head_size="split", frame_position=False)
    video = videos(2)
    assert off(method, texts(1), VideoFeatures(400.0 * video.frames, video.mask)) < PRECISE


@pytest.mark.parametrize(("size", "shift"), one_in(2, [(0.0, -6.0), (1e-8, -6.0), (0.0, -200.0)]))
def test_texts_of_no_length_have_finite_scores(size: float, shift: float) -> None:
    method = model(**RELEASED)
    with torch.no_grad():
        method.stochastic.log_radius.bias.add_(shift)
    assert off(method, TextFeatures(size * texts(1).sentence), videos(2)) < PRECISE


def test_heads_may_outnumber_the_columns_of_a_tile() -> None:
    method = model(dim=16, num_heads=17, num_candidates=2, edge_weights="activated")
    assert off(method, texts(1, dim=16), videos(1, dim=16)) < PRECISE


@pytest.mark.parametrize("precision", one_in(2, ["fp32", "bf16"]))
def test_radii_of_similar_cosines_take_a_small_product(precision: str) -> None:
    method = model(dim=128, num_heads=2, num_candidates=2, **RELEASED)
    text, video = texts(1, dim=128), videos(2, dim=128)
    scorer = choose(method, video, backend="kernel", precision=precision)
    launcher: KernelLauncher = scorer.launcher  # type: ignore[attr-defined]
    with torch.no_grad():
        whole = scorer.score(text, scorer.prepare(video))
        assert launcher.basis is None
        scorer.calibrate(text, video)
        assert launcher.basis is not None
        assert len(launcher.basis.columns) < len(launcher.noise_columns)
        small = scorer.score(text, scorer.prepare(video))
        # Radii that the basis does not hold are multiplied as a whole.
        far = TextFeatures(video.frames[:1, 0])
        expected = method.score(far, video)
        scores = scorer.score(far, scorer.prepare(video))
    limit = PRECISE if precision == "fp32" else HALF
    assert largest_difference(small, whole) < limit
    assert largest_difference(scores, expected) < limit


def test_a_basis_that_does_not_fit_is_not_used() -> None:
    method = model(dim=64, num_heads=2, num_candidates=2, **RELEASED)
    text, video = texts(1, dim=64), videos(2, dim=64)
    scorer = choose(method, video, backend="kernel")
    launcher: KernelLauncher = scorer.launcher  # type: ignore[attr-defined]
    with torch.no_grad():
        whole = scorer.score(text, scorer.prepare(video))
        scorer.calibrate(text, video)
        launcher.tolerance = 0.0
        assert torch.equal(scorer.score(text, scorer.prepare(video)), whole)


@pytest.mark.parametrize(
    "options",
    one_in(
        4,
        [
            RELEASED,
            {**RELEASED, "mask_frames": True},
            {**RELEASED, "num_heads": 3, "dim": 48, "shared_residual": False},
            {**RELEASED, "negative_slope": 0.0, "mask_frames": True, "num_frames": 19},
        ],
    ),
)
def test_stages_give_the_weights_of_one_program(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of text nodes, sharpened: a score would hide small errors of the graph."""
    method = model(**options)
    with torch.no_grad():
        method.graph.edges.relation.projection.weight.mul_(60.0)
    dim = method.config.dim
    text, video = texts(2, dim=dim), videos(2, frames=method.config.num_frames, dim=dim)
    if options["mask_frames"]:
        video.mask[1] = False
    weights: list[Tensor] = []
    pool, new_empty = KernelLauncher.pool, Tensor.new_empty

    def watch(self: KernelLauncher, *given: Any) -> Tensor:
        weights.append(given[3])
        return pool(self, *given)

    def subnormal(self: Tensor, *shape: Any, **options: Any) -> Tensor:
        """Return memory as a process may leave it: 1 / 2e-40 overflows, which NumPy reports."""
        return new_empty(self, *shape, **options).fill_(2e-40)

    monkeypatch.setattr(KernelLauncher, "pool", watch)
    monkeypatch.setattr(Tensor, "new_empty", subnormal)
    score_all(method, text, video, backend="kernel", precision="fp32")
    score_all(method, text, video, backend="kernel", precision="bf16")
    monkeypatch.setattr(KernelLauncher, "takes_stages", False)
    score_all(method, text, video, backend="kernel", precision="bf16")
    exact, in_stages, together = weights
    assert float((exact.amax(dim=-1) - exact.amin(dim=-1)).max()) > 0.1
    assert largest_difference(in_stages, exact) < 2 * largest_difference(together, exact) + 1e-3


def test_attention_terms_and_narrow_pooling_stay_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(model(**RELEASED), torch.device("cpu"))
    assert plan is not None
    assert KernelLauncher(plan, precise=False).outer == torch.float32
    arguments: list[Tensor] = []
    attend = KernelLauncher.attend_in_stages

    def watch(
        self: KernelLauncher,
        text: Tensor,
        rows: Tensor,
        projection: Tensor,
        scores: Tensor,
        video: PreparedVideos,
    ) -> Tensor:
        arguments.append(scores)
        return attend(self, text, rows, projection, scores, video)

    monkeypatch.setattr(KernelLauncher, "attend_in_stages", watch)
    off(model(**RELEASED), texts(1), videos(1), "bf16")
    assert arguments[0].dtype == torch.float32
    assert not torch.equal(arguments[0], arguments[0].bfloat16().float())


def test_a_tile_holds_fewer_videos_where_a_pair_holds_more() -> None:
    video = videos(1)
    small = choose(model(**RELEASED), video, backend="kernel", precision="bf16")
    wide = model(dim=128, num_heads=4, num_candidates=63)
    large = choose(wide, videos(1, dim=128), backend="kernel")
    assert small.tile_videos == 512
    # 256 texts, 63 candidates, 4 heads of 128 messages and as many residuals, 4 bytes each
    assert large.tile_videos == 2 * 2**30 // (256 * 63 * 1024 * 4)
    assert large.tile_videos * 64 * 63 * 1024 * 4 <= 2 * 2**30
