"""The Triton kernels give the method's own scores; here under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scoring_cases import RELEASED, largest_difference, model, texts, videos

from eaglenet.scoring import score_all
from eaglenet.scoring.fused import tuning_for

pytest.importorskip("triton")
from eaglenet.scoring.kernel import is_interpreted

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


def difference(options: dict[str, Any], precision: str, num_texts: int = 2) -> float:
    method = model(**options)
    dim = method.config.dim
    text, video = texts(num_texts, dim=dim), videos(3, dim=dim)
    expected = method.score(text, video).detach()
    scores = score_all(method, text, video, backend="kernel", precision=precision)
    return largest_difference(scores, expected)


@pytest.mark.parametrize("options", CASES.values(), ids=CASES.keys())
def test_the_precise_kernel_agrees(options: dict[str, Any]) -> None:
    assert difference(options, "fp32") < PRECISE


@pytest.mark.parametrize("name", ["paper", "released", "gat"])
def test_the_half_precision_kernel_stays_near(name: str) -> None:
    assert difference(CASES[name], "bf16") < HALF


def test_the_half_precision_kernel_stays_near_for_wide_features() -> None:
    """From 128 dimensions on the pooling is in half precision too."""
    assert difference({**RELEASED, "dim": 128, "num_heads": 4}, "bf16") < HALF


@pytest.mark.slow
@pytest.mark.parametrize("options", MORE_CASES.values(), ids=MORE_CASES.keys())
def test_the_kernel_agrees_over_the_grid(options: dict[str, Any]) -> None:
    assert difference(options, "fp32", num_texts=1) < PRECISE
    assert difference(options, "bf16", num_texts=1) < HALF


def test_uneven_tiles_of_the_kernel_agree() -> None:
    method, text, video = model(**RELEASED), texts(3), videos(5)
    scores = score_all(method, text, video, backend="kernel", tile_texts=2, tile_videos=3)
    assert largest_difference(scores, method.score(text, video).detach()) < PRECISE


@pytest.mark.parametrize("frames", [1, 3])
def test_the_kernel_takes_fewer_frames_than_the_model_has_room_for(frames: int) -> None:
    method, text = model(edge_weights="activated", head_size="split"), texts(2)
    video = videos(4, frames=frames)
    scores = score_all(method, text, video, backend="kernel")
    assert largest_difference(scores, method.score(text, video).detach()) < PRECISE


def test_the_kernel_scores_a_video_without_any_real_frame() -> None:
    method, text, video = model(edge_weights="activated"), texts(2), videos(3)
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
    assert tuning_for(64, precise=True).block == 64
    method = model(dim=128, num_heads=1, num_frames=40, num_candidates=2, edge_weights="activated")
    text, video = texts(2, dim=128), videos(2, frames=40, dim=128)
    expected = score_all(method, text, video, backend="reference")
    found = score_all(method, text, video, backend="kernel")
    assert largest_difference(found, expected) < 1e-5
