"""HGR against loops; what it does without graphs."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from expert_inputs import EXACT, build, experts_of, matrix, random, texts, videos, words_of

from eaglenet.core.errors import UsageError
from eaglenet.methods.early.hgr import node_similarities
from reference import hgr as reference
from reference.arithmetic import weights_of


@torch.no_grad()
def test_the_score_equals_the_loops() -> None:
    method, text, video = build("hgr"), texts(), videos()
    weights = weights_of(method)
    assert text.graph is not None
    rows = []
    for number, words in enumerate(words_of(text)):
        spans = [
            [place for place in span.nonzero().flatten().tolist() if place < len(words)]
            for span in text.graph.spans[number]
        ]
        neighbours = [row.nonzero().flatten().tolist() for row in text.graph.edges[number]]
        nodes = reference.nodes_of(
            words, spans, text.graph.roles[number].tolist(), neighbours, weights
        )
        rows.append(
            [reference.similarity(nodes, experts, weights) for experts in experts_of(video)]
        )
    scores = method.score(method.encode_text(text), method.encode_video(video))
    torch.testing.assert_close(scores, matrix(rows), **EXACT)


@torch.no_grad()
def test_the_gram_matrix_gives_what_the_mixed_frames_would() -> None:
    nodes, frames = random(2, 3, 8, seed=1), random(4, 5, 8, seed=2)
    mask = torch.arange(5)[None] < torch.tensor([[5], [2], [3], [1]])
    result = node_similarities(nodes, frames, mask, sharpness=4.0)
    for video in range(4):
        real = frames[video][mask[video]]
        cosines = torch.nn.functional.cosine_similarity(nodes[:, :, None], real, dim=-1)
        positive = torch.nn.functional.normalize(cosines.clamp_min(0), dim=-1, eps=1e-10)
        mean = (4 * positive).softmax(dim=-1) @ real
        expected = torch.nn.functional.cosine_similarity(nodes, mean, dim=-1)
        torch.testing.assert_close(result[:, video], expected, **EXACT)


def test_without_graphs_it_refuses_to_score_two_thirds_of_nothing() -> None:
    text = dataclasses.replace(texts(), graph=None)
    with pytest.raises(UsageError, match="graphs"):
        build("hgr").encode_text(text)


@torch.no_grad()
def test_a_sentence_without_verbs_has_its_other_levels() -> None:
    method, text, video = build("hgr"), texts(), videos()
    assert text.graph is not None
    text.graph.spans[:, 1:5] = False
    scores = method.score(method.encode_text(text), method.encode_video(video))
    assert scores.isfinite().all()
