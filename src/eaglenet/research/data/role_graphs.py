"""Graphs of semantic roles in captions: verbs and their arguments, extracted by rules.

The authors of HGR use a BERT that labels semantic roles. Captions are short and in the third
person, so a few rules find most verbs and noun phrases without a download: words of closed classes
are listed; a verb is a listed stem with an ending, or another word in -ing or -ed without an
article before it; all other words are parts of noun phrases. If the rules find no verb, the nodes
are the noun phrases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from eaglenet.core.types import TextGraph

MAX_VERBS, MAX_NOUNS = 4, 6
NUM_NODES = 1 + MAX_VERBS + MAX_NOUNS
ROLES = (
    "V", "ARG0", "ARG1", "ARG2", "ARG3", "ARG4", "LOC", "MNR", "TMP", "DIR", "ADV", "PRP", "PRD",
    "COM", "MOD", "NOUN",
)  # fmt: skip


def _word_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


DETERMINERS = _word_set(
    "a an the this that these those some any each every no his her its their my your our two three "
    "four five several many"
)
PRONOUNS = _word_set("he she it they someone somebody people him them everyone who")
AUXILIARIES = _word_set(
    "is are was were be been being am has have had do does did will would can could may might must "
    "should"
)
CONJUNCTIONS = _word_set(
    "and or but while as then before after when how first later only alone not that"
)
DIRECTIONS = _word_set("left right up down away out in off over back forward across")
PREPOSITIONS = {
    "in": "LOC", "on": "LOC", "at": "LOC", "near": "LOC", "under": "LOC", "inside": "LOC",
    "behind": "LOC", "beside": "LOC", "around": "LOC", "over": "LOC", "above": "LOC",
    "to": "DIR", "into": "DIR", "from": "DIR", "onto": "DIR", "through": "DIR", "towards": "DIR",
    "across": "DIR", "down": "DIR", "up": "DIR", "off": "DIR", "out": "DIR",
    "with": "COM", "by": "MNR", "for": "PRP", "during": "TMP", "about": "ARG2", "of": "ARG2",
}  # fmt: skip
ADVERBS = _word_set(
    "very quickly slowly still together again there here outside bigger smaller larger"
)
VERBS = _word_set(
    "add ask bake become begin blow bounce break bring brush build call carry catch clean climb "
    "close come cook cover cross cut dance demonstrate describe dig dive do draw drink drive drop "
    "eat enter explain fall feed fight fill find fix fly fold follow get give go grow hang hit "
    "hold interview jump keep kick kiss laugh lay lead leave lift listen look make mix move open "
    "paint pass peel perform pick play point pour prepare present press pull punch push put race "
    "read ride rise roll run say scream see sell serve shake shoot show shrink shut sing sit skate "
    "ski sleep slice slide smile speak spin stand stay stir stop swim take talk tell throw touch "
    "turn type use wait walk wash watch wear work wrap write"
)


@dataclass(frozen=True)
class Node:
    """A verb or a noun phrase: words from ``start`` to before ``end``, and their role."""

    start: int
    end: int
    role: str


@dataclass(frozen=True)
class Parse:
    """Verbs and noun phrases of a caption, and pairs of their indices that are related."""

    verbs: tuple[Node, ...]
    nouns: tuple[Node, ...]
    pairs: tuple[tuple[int, int], ...]


def parse(words: Sequence[str]) -> Parse:
    """Find verbs (role V) and noun phrases in the words of a caption.

    The nearest noun phrase before a verb is its ARG0; those after it are ARG1, ARG2 and so on, or
    have the role of their preposition (place, direction, company, ...).
    """
    tokens = [re.sub(r"[^a-z0-9]", "", word.lower()) for word in words]
    tags = _tags(tokens)
    verbs = [
        Node(position, position + 1, "V") for position, tag in enumerate(tags) if tag == "verb"
    ]
    nouns: list[Node] = []
    pairs: list[tuple[int, int]] = []
    number = 0
    position = 0
    while position < len(tags):
        end = position
        while (
            end < len(tags)
            and tags[end] == "noun"
            # A determiner or pronoun begins a new phrase.
            and (end == position or tokens[end] not in DETERMINERS | PRONOUNS)
        ):
            end += 1
        if end == position:
            position += 1
            continue
        verbs_before = [index for index, verb in enumerate(verbs) if verb.start < position]
        verbs_after = [index for index, verb in enumerate(verbs) if verb.start >= end]
        prefix = _prefix_role(tokens, position)
        if verbs_after and (not verbs_before or prefix == "conjunction"):
            role, verb_index = "ARG0", verbs_after[0]
        elif verbs_before:
            verb_index = verbs_before[-1]
            # The phrase before belongs to the same verb, and is not its ARG0.
            continues = (verb_index, len(nouns) - 1) in pairs
            continues = continues and nouns[-1].start > verbs[verb_index].start
            number = number + 1 if continues else 1
            role = prefix or f"ARG{min(number, 4)}"
            role = "ARG1" if role == "conjunction" else role
        else:
            role, verb_index = "NOUN", -1
        if verb_index >= 0:
            pairs.append((verb_index, len(nouns)))
        nouns.append(Node(position, end, role))
        position = end
    return Parse(tuple(verbs), tuple(nouns), tuple(pairs))


def role_graph(words: Sequence[str], length: int) -> TextGraph:
    """Make the graph of a caption over its first ``length`` words.

    Node 0 is the whole caption, 1 to 4 are verbs, 5 to 10 noun phrases. Edges go from the caption
    to its verbs, and both ways between a verb and its arguments.
    """
    # NumPy sets single entries much faster than torch.
    spans = np.zeros((1, NUM_NODES, length), np.bool_)
    roles = np.zeros((1, NUM_NODES), np.int64)
    edges = np.zeros((1, NUM_NODES, NUM_NODES), np.bool_)
    caption = list(words[:length])
    spans[0, 0, : len(caption)] = True
    result = parse(caption)
    for number, verb in enumerate(result.verbs[:MAX_VERBS]):
        spans[0, 1 + number, verb.start : verb.end] = True
        edges[0, 1 + number, 0] = True
    for number, noun in enumerate(result.nouns[:MAX_NOUNS]):
        node = 1 + MAX_VERBS + number
        spans[0, node, noun.start : noun.end] = True
        roles[0, node] = ROLES.index(noun.role)
    for verb_number, noun_number in result.pairs:
        if verb_number < MAX_VERBS and noun_number < MAX_NOUNS:
            verb_node, noun_node = 1 + verb_number, 1 + MAX_VERBS + noun_number
            edges[0, verb_node, noun_node] = edges[0, noun_node, verb_node] = True
    return TextGraph(*map(torch.from_numpy, (spans, roles, edges)))


def role_graphs(captions: Sequence[Sequence[str]], length: int) -> TextGraph:
    return TextGraph.concatenate([role_graph(words, length) for words in captions])


def expand_to_tokens(
    graphs: TextGraph, token_counts: Sequence[Sequence[int]], length: int, *, first: int
) -> TextGraph:
    """Convert graphs over words to graphs over tokens.

    token_counts: number of tokens of each word of each text. length: tokens per text; later ones
    are left out. first: position of the first word's first token.
    """
    spans = torch.zeros(len(graphs), graphs.spans.shape[1], length, dtype=torch.bool)
    word_spans, token_spans = graphs.spans.numpy(), spans.numpy()[:, :, first:]
    for text, counts in enumerate(token_counts):
        limit = min(len(counts), word_spans.shape[2])
        tokens = word_spans[text, :, :limit].repeat(counts[:limit], axis=1)
        tokens = tokens[:, : token_spans.shape[2]]
        token_spans[text, :, : tokens.shape[1]] = tokens
    return TextGraph(spans, graphs.roles, graphs.edges)


def stems(word: str) -> set[str]:
    """Return a word with and without an ending that it may have, such as -s, -ing or -ed."""
    forms = {word}
    for ending, replacements in (
        ("ies", ("y",)), ("es", ("", "e")), ("s", ("",)), ("ing", ("", "e")), ("ed", ("", "e")),
    ):  # fmt: skip
        if word.endswith(ending) and len(word) > len(ending) + 1:
            root = word[: -len(ending)]
            forms |= {root + replacement for replacement in replacements}
            if len(root) > 2 and root[-1] == root[-2]:
                forms.add(root[:-1])
    return forms


def _tags(words: Sequence[str]) -> list[str]:
    """Tag each word as verb, noun or other."""
    tags: list[str] = []
    for position, word in enumerate(words):
        before = words[position - 1] if position else ""
        tags.append(
            _tag(word, before, tags[-1] if tags else "", words[position + 1 : position + 2])
        )
    return tags


def _tag(word: str, before: str, tag_before: str, after: Sequence[str]) -> str:
    if not word or word in CONJUNCTIONS or word in AUXILIARIES or word in ADVERBS:
        return "other"
    if word in DIRECTIONS and tag_before == "verb":
        # In "moves left" the direction is an argument; in "goes in the water", a preposition.
        return "other" if after and after[0] in DETERMINERS else "noun"
    if word in PREPOSITIONS:
        return "other"
    if word in DETERMINERS or word in PRONOUNS:
        return "noun"
    # In "a white cross gets smaller" the verb is the word with the ending.
    is_before_verb = bool(after) and after[0] not in VERBS and bool(stems(after[0]) & VERBS)
    if word in VERBS and is_before_verb:
        return "noun"
    is_phrase_open = before in DETERMINERS
    if stems(word) & VERBS and not is_phrase_open and (tag_before == "noun" or word.endswith("ing")
                                                       or before in AUXILIARIES
                                                       or before in CONJUNCTIONS):  # fmt: skip
        return "verb"
    is_participle = word.endswith(("ing", "ed")) and len(word) > 4
    if is_participle and not is_phrase_open and (before in AUXILIARIES or tag_before == "noun"):
        return "verb"
    return "noun"


def _prefix_role(words: Sequence[str], position: int) -> str:
    """Return the role that the preposition before a phrase gives it.

    ``conjunction`` if a conjunction precedes the phrase; empty if neither does.
    """
    if position == 0:
        return ""
    before = words[position - 1]
    if before in CONJUNCTIONS:
        return "conjunction"
    if words[position] in DIRECTIONS:
        return "DIR"
    return PREPOSITIONS.get(before, "")
