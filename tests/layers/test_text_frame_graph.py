"""The graph against message passing written from the equations, over all its options."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from eaglenet.core.errors import ConfigError
from eaglenet.layers.masking import masked_softmax
from eaglenet.layers.text_frame_graph import TextFrameGraph
from reference.eaglenet_reference import graph_weights
from sampling import one_in

TEXTS, VIDEOS, HEADS, FRAMES, NODES, DIM = 1, 2, 3, 4, 5, 6

GRID = [
    {
        "kind": kind,
        "num_layers": layers,
        "edge_weights": weights,
        "edge_direction": direction,
        "frame_edges": edges,
        "num_heads": HEADS,
        "negative_slope": 0.1,
        # Spread over the grid, so that each meets every other option without a larger product.
        "head_size": ("full", "split")[(index + index // 3) % 2],
        "shared_residual": bool(index // 2 % 2) and kind == "rgat",
    }
    for index, (kind, layers, weights, direction, edges) in enumerate(
        product(
            ("rgat", "gat"),
            (1, 2, 3),
            ("raw", "activated"),
            ("text_to_frame", "frame_to_text"),
            (True, False),
        )
    )
]


def build(options: dict[str, Any], dim: int = DIM) -> TextFrameGraph:
    torch.manual_seed(3)
    return TextFrameGraph(dim, FRAMES, **options).double()


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    texts = torch.randn(TEXTS, VIDEOS, NODES, DIM, dtype=torch.float64, generator=generator)
    frames = torch.randn(VIDEOS, FRAMES, DIM, dtype=torch.float64, generator=generator)
    mask = torch.tensor([[True, True, True, True], [True, True, False, True]])
    return texts.requires_grad_(), frames.requires_grad_(), mask


def reference(graph: TextFrameGraph, options: dict[str, Any]) -> Tensor:
    texts, frames, mask = inputs()
    rows = [
        [graph_weights(graph, texts[t, v], frames[v], mask[v], options) for v in range(VIDEOS)]
        for t in range(TEXTS)
    ]
    return torch.stack([torch.stack(row) for row in rows])


def identity(options: dict[str, Any]) -> str:
    return "-".join(str(value) for value in options.values())


@pytest.mark.parametrize("options", one_in(5, GRID), ids=identity)
def test_weights_and_gradients_equal_the_loop(options: dict[str, Any]) -> None:
    graph = build(options).eval()
    texts, frames, mask = inputs()
    ours, loop = graph(texts, frames, mask), reference(graph, options)
    assert_close(ours, loop)
    cotangent = torch.linspace(-1, 1, ours.numel(), dtype=torch.float64).view_as(ours)
    parameters = list(graph.parameters())
    gradient = torch.autograd.grad((ours * cotangent).sum(), parameters)
    expected = torch.autograd.grad((loop * cotangent).sum(), parameters)
    for one, other in zip(gradient, expected, strict=True):
        assert_close(one, other)


@pytest.mark.parametrize("options", GRID, ids=identity)
def test_every_parameter_gets_a_gradient(options: dict[str, Any]) -> None:
    # Over several draws: where all logits of a row lie on one side of LeakyReLU's kink, the query
    # vector's part cancels in the softmax by chance. What is dead is so in every draw, to rounding.
    generator = torch.Generator().manual_seed(11)
    largest: dict[str, float] = {}
    for _ in range(8):
        graph = build(options, dim=24)
        for parameter in graph.parameters():
            bound = parameter.shape[-1] ** -0.5
            parameter.data.normal_(std=2 * bound, generator=generator)
        texts = torch.randn(7, VIDEOS, NODES, 24, dtype=torch.float64, generator=generator)
        frames = torch.randn(VIDEOS, FRAMES, 24, dtype=torch.float64, generator=generator)
        (graph(texts, frames) * torch.arange(NODES)).square().sum().backward()
        for name, parameter in graph.named_parameters():
            assert parameter.grad is not None, name
            gradient = float(parameter.grad.abs().max())
            largest[name] = max(gradient, largest.get(name, 0.0))
        if min(largest.values()) > 1e-9:
            return
    raise AssertionError(f"never got a gradient: {largest}")


def test_raw_edges_read_no_frames_of_the_last_layer() -> None:
    names = {
        layers: {name for name, _ in build({"num_layers": layers}).named_parameters()}
        for layers in (1, 2, 3)
    }
    assert names[1] == {"edges.relation.projection.weight", "edges.relation.query"}
    assert not any("frame_frame" in name for name in names[2])
    assert {n for n in names[3] if "frame_frame" in n} == {
        "layers.0.frame_frame.projection.weight",
        "layers.0.frame_frame.query",
        "layers.0.frame_frame.key",
    }
    assert "position" in names[2]


def test_one_layer_builds_one_layer() -> None:
    graph = build({"num_layers": 1, "edge_weights": "activated"})
    assert len(graph.layers) == 0
    assert {n for n, _ in graph.named_parameters()} == {
        "position",
        "edges.relation.projection.weight",
        "edges.relation.query",
        "edges.relation.key",
    }


@pytest.mark.parametrize("kind", ["rgat", "gat"])
def test_padded_frames_are_in_no_neighbourhood(kind: Any) -> None:
    graph = build({"kind": kind, "edge_weights": "activated", "num_layers": 3, "num_heads": 3})
    texts, frames, mask = inputs()
    other_frames = frames.detach().clone()
    other_frames[1, 2] = 1e3
    assert_close(graph(texts, other_frames, mask), graph(texts, frames, mask))


def test_a_video_without_frames_gives_finite_weights() -> None:
    graph = build({"edge_weights": "activated", "num_heads": 3})
    texts, frames, _ = inputs()
    weights = graph(texts, frames, torch.zeros(VIDEOS, FRAMES, dtype=torch.bool))
    assert weights.isfinite().all()


def test_the_mask_survives_half_precision() -> None:
    logits = torch.tensor([[3.0, 2.0, 7.0]], dtype=torch.float16)
    weights = masked_softmax(logits, torch.tensor([True, True, False]))
    assert weights.isfinite().all()
    assert weights[0, 2] == 0


def test_without_frame_edges_frames_ignore_each_other() -> None:
    texts, frames, _ = inputs()
    base = {"num_layers": 2, "edge_weights": "activated", "num_heads": 3}
    other_frames = frames.detach().clone()
    other_frames[:, 3] += 1.0
    for kind in ("rgat", "gat"):
        graph = build({**base, "kind": kind, "frame_edges": False})
        _, before = graph.layers[0](texts, frames[None], None)
        _, after = graph.layers[0](texts, other_frames[None], None)
        assert_close(before[:, :, :3], after[:, :, :3])


def test_impossible_graphs_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_layers must be 1 or more, not 0"):
        build({"num_layers": 0})
    with pytest.raises(ConfigError, match="cannot be split"):
        build({"head_size": "split", "num_heads": 4})
