"""The factorised back end gives the method's own scores, whatever the options."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring_cases import RELEASED, largest_difference, model, texts, videos

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.eaglenet import EagleNet
from eaglenet.scoring import score_all
from sampling import one_in

EXACT = 1e-6
HALF = 3e-3
GRID = list(
    itertools.product(
        ("rgat", "gat"),
        ("raw", "activated"),
        ("text_to_frame", "frame_to_text"),
        ("full", "split"),
        (1, 2, 3),
    )
)


@torch.no_grad()
def reference(method: EagleNet, text: TextFeatures, video: VideoFeatures) -> torch.Tensor:
    """The method's own score in double precision."""
    scores = method.double().score(text.to("cpu", torch.float64), video.to("cpu", torch.float64))
    method.float()
    return scores


def difference(method: EagleNet, text: TextFeatures, video: VideoFeatures, **how: Any) -> float:
    expected = reference(method, text, video)
    return largest_difference(score_all(method, text, video, **how), expected)


@pytest.mark.parametrize(
    ("graph", "edge_weights", "direction", "head_size", "layers"), one_in(5, GRID)
)
def test_factorised_scores_are_the_methods_own(
    graph: str, edge_weights: str, direction: str, head_size: str, layers: int
) -> None:
    for frame_edges, mask_frames in itertools.product((True, False), repeat=2):
        method = model(
            graph=graph,
            edge_weights=edge_weights,
            edge_direction=direction,
            head_size=head_size,
            num_layers=layers,
            frame_edges=frame_edges,
            mask_frames=mask_frames,
            shared_residual=head_size == "split",
            radius_bias=mask_frames,
            frame_position=frame_edges,
        )
        assert difference(method, texts(), videos(), backend="factorised") < EXACT


@given(
    heads=st.sampled_from([1, 2, 4]),
    candidates=st.integers(1, 7),
    frames=st.integers(1, 6),
    dim=st.sampled_from([8, 12, 48]),
    count=st.tuples(st.integers(1, 4), st.integers(1, 6)),
    options=st.fixed_dictionaries(
        {
            "graph": st.sampled_from(["rgat", "gat"]),
            "edge_weights": st.sampled_from(["raw", "activated"]),
            "head_size": st.sampled_from(["full", "split"]),
            "num_layers": st.integers(1, 3),
            "shared_residual": st.booleans(),
            "frame_position": st.booleans(),
            "radius_bias": st.booleans(),
            "mask_frames": st.booleans(),
            "prior": st.sampled_from(["normal", "uniform"]),
        }
    ),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_sizes_and_options_agree(
    heads: int,
    candidates: int,
    frames: int,
    dim: int,
    count: tuple[int, int],
    options: dict[str, Any],
    seed: int,
) -> None:
    method = model(
        seed=seed, dim=dim, num_frames=6, num_heads=heads, num_candidates=candidates, **options
    )
    text, video = texts(count[0], dim=dim), videos(count[1], frames=frames, dim=dim)
    assert difference(method, text, video, backend="factorised", tile_texts=3, tile_videos=4) < 2e-6


@pytest.mark.parametrize("options", [{}, RELEASED], ids=["paper", "released"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_both_presets_agree_for_any_number_of_heads(options: dict[str, Any], heads: int) -> None:
    assert difference(model(num_heads=heads, **options), texts(), videos()) < EXACT


@pytest.mark.parametrize("backend", ["factorised", "reference"])
@pytest.mark.parametrize("options", [{}, RELEASED], ids=["paper", "released"])
def test_half_precision_stays_near(options: dict[str, Any], backend: str) -> None:
    method = model(dim=128, num_heads=4, **options)
    text, video = texts(dim=128), videos(dim=128)
    assert difference(method, text, video, backend=backend, precision="bf16") < HALF


@pytest.mark.parametrize("options", [{}, RELEASED], ids=["paper", "released"])
def test_shapes_of_the_paper_agree(options: dict[str, Any]) -> None:
    method = model(dim=512, num_frames=12, num_candidates=20, num_heads=4, **options)
    text, video = texts(dim=512), videos(frames=12, dim=512)
    assert difference(method, text, video, backend="factorised") < EXACT


@pytest.mark.parametrize("tile", [(1, 1), (2, 3), (5, 6), (64, 64)])
@pytest.mark.parametrize("backend", ["factorised", "reference"])
def test_uneven_tails_of_tiles_change_nothing(tile: tuple[int, int], backend: str) -> None:
    method, text, video = model(), texts(5), videos(7)
    whole = score_all(method, text, video, backend=backend, tile_texts=5, tile_videos=7)
    cut = score_all(method, text, video, backend=backend, tile_texts=tile[0], tile_videos=tile[1])
    assert largest_difference(whole, cut) < EXACT


@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("graph", ["rgat", "gat"])
@pytest.mark.parametrize("edge_weights", ["raw", "activated"])
def test_a_video_without_any_real_frame_scores_as_the_method_says(
    num_layers: int, graph: str, edge_weights: str
) -> None:
    method = model(num_layers=num_layers, graph=graph, edge_weights=edge_weights)
    video = videos()
    video.mask[2] = False
    scores = score_all(method, texts(), video, backend="factorised")
    assert torch.isfinite(scores).all()
    assert largest_difference(scores, reference(method, texts(), video)) < EXACT


@pytest.mark.parametrize("backend", ["factorised", "kernel"])
@pytest.mark.parametrize("options", [{}, RELEASED, {**RELEASED, "mask_frames": True}])
def test_gaps_in_masks_are_scored_as_the_method_says(options: dict[str, Any], backend: str) -> None:
    """The first video has no real frame at all, and the second one alone, in the middle."""
    method, video = model(**options), videos()
    video.mask[:] = torch.tensor([[0] * 5, [0, 0, 1, 0, 0], [0, 1, 0, 1, 1], [1, 0, 1, 0, 0]])
    text = texts(1) if backend == "kernel" else texts()  # Interpreted pair by pair.
    assert difference(method, text, video, backend=backend) < 1e-5


def test_padded_frames_do_not_matter_where_the_model_masks_them() -> None:
    method, video = model(**{**RELEASED, "mask_frames": True}), videos()
    other = VideoFeatures(
        torch.where(video.mask[..., None], video.frames, 7.0 * video.frames + 1.0), video.mask
    )
    left, right = score_all(method, texts(), video), score_all(method, texts(), other)
    assert largest_difference(left, right) < EXACT


def test_a_permuted_gallery_gives_permuted_columns() -> None:
    method, text, video = model(**RELEASED), texts(), videos(7)
    order = torch.tensor([3, 0, 6, 2, 5, 1, 4])
    permuted_scores = score_all(method, text, video[order], tile_videos=4)
    expected = score_all(method, text, video, tile_videos=3)[:, order]
    assert largest_difference(permuted_scores, expected) < EXACT


def test_features_in_half_precision_are_scored_in_single() -> None:
    method = model()
    text, video = texts().to("cpu", torch.float16), videos().to("cpu", torch.float16)
    scores = score_all(method, text, video, backend="factorised")
    assert scores.dtype == torch.float32
    assert largest_difference(scores, reference(method, text, video)) < EXACT
