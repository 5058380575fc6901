"""Verbs and their arguments by rules."""

from __future__ import annotations

import pytest
import torch

from eaglenet.research.data.demo.world import DemoWorld
from eaglenet.research.data.role_graphs import (
    MAX_VERBS,
    NUM_NODES,
    ROLES,
    expand_to_tokens,
    parse,
    role_graph,
    role_graphs,
)


def phrases(sentence: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Verbs, and noun phrases with their roles."""
    words = sentence.split()
    found = parse(words)
    verbs = [words[verb.start] for verb in found.verbs]
    nouns = [(" ".join(words[noun.start : noun.end]), noun.role) for noun in found.nouns]
    return verbs, nouns


@pytest.mark.parametrize(
    ("sentence", "verbs", "nouns"),
    [
        (
            "a man is riding a horse on the beach",
            ["riding"],
            [("a man", "ARG0"), ("a horse", "ARG1"), ("the beach", "LOC")],
        ),
        (
            "a small red circle moves left before a big blue star grows",
            ["moves", "grows"],
            [("a small red circle", "ARG0"), ("left", "DIR"), ("a big blue star", "ARG0")],
        ),
        (
            "a man throws the dog a ball and a cat drinks milk",
            ["throws", "drinks"],
            [
                ("a man", "ARG0"),
                ("the dog", "ARG1"),
                ("a ball", "ARG2"),
                ("a cat", "ARG0"),
                ("milk", "ARG1"),
            ],
        ),
        ("someone is slicing tomatoes", ["slicing"], [("someone", "ARG0"), ("tomatoes", "ARG1")]),
        ("football match highlights", [], [("football match highlights", "NOUN")]),
        ("a large white cross gets smaller", ["gets"], [("a large white cross", "ARG0")]),
    ],
)
def test_captions_give_their_verbs_and_noun_phrases(
    sentence: str, verbs: list[str], nouns: list[tuple[str, str]]
) -> None:
    assert phrases(sentence) == (verbs, nouns)


@pytest.mark.parametrize("sentence", ["", "!!! ???", "and and and", "the", "\u4f60", "ing ed"])
def test_no_sentence_stops_the_parser(sentence: str) -> None:
    graph = role_graph(sentence.split(), 7)
    assert graph.spans.shape == (1, NUM_NODES, 7)
    assert graph.spans[0, 0].sum() == len(sentence.split())


def test_every_caption_of_the_demo_world_has_a_verb_and_a_doer() -> None:
    for scene in DemoWorld(0).scenes("train", 40):
        for caption in scene.captions:
            verbs, nouns = phrases(caption)
            assert len(verbs) >= len(scene.events), caption
            assert sum(role == "ARG0" for _, role in nouns) >= 1, caption


def test_a_graph_says_who_hears_whom() -> None:
    words = ["a", "man", "is", "riding", "a", "horse"]
    graph = role_graphs([words, words[:2]], 6)
    verb, doer, thing = 1, 1 + MAX_VERBS, 2 + MAX_VERBS
    assert graph.spans[0, verb].tolist() == [False, False, False, True, False, False]
    assert graph.spans[0, doer].tolist() == [True, True, False, False, False, False]
    assert graph.roles[0, thing] == ROLES.index("ARG1")
    expected = torch.zeros(NUM_NODES, NUM_NODES, dtype=torch.bool)
    for listener, speaker in ((verb, 0), (verb, doer), (doer, verb), (verb, thing), (thing, verb)):
        expected[listener, speaker] = True
    assert torch.equal(graph.edges[0], expected)
    # Without a verb nobody hears anybody.
    assert not graph.edges[1].any()


def test_a_word_of_several_tokens_spans_them_all() -> None:
    words = ["a", "man", "rides", "a", "horse"]
    graph = expand_to_tokens(role_graphs([words], 5), [[1, 2, 3, 1, 1]], 8, first=1)
    verb, doer = 1, 1 + MAX_VERBS
    assert graph.spans[0, doer].nonzero().flatten().tolist() == [1, 2, 3]
    assert graph.spans[0, verb].nonzero().flatten().tolist() == [4, 5, 6]
    # The horse lies beyond the eight tokens; its article does not.
    assert graph.spans[0, doer + 1].nonzero().flatten().tolist() == [7]
