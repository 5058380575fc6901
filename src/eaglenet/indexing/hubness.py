"""Which bank of sentences levels the clips of a store, and how one is made.

A clip that is near to every sentence answers every question. What it owes to that is taken off its
scores, measured by sentences that are fixed when it is indexed (``scoring.hubness`` has the
arithmetic, ``search.store.hub_bank`` what is kept).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError, UsageError, cause_of
from eaglenet.methods.base import Method
from eaglenet.models.head import head_folder, with_head
from eaglenet.scoring.hubness import TEMPERATURE
from eaglenet.search.query import clean_query, encode_sentences
from eaglenet.search.store.hub_bank import HubBank
from eaglenet.search.store.publishing import missing_clips

if TYPE_CHECKING:
    from eaglenet.search.store.base import Store
    from eaglenet.search.store.tables import ClipStore

OWN, OFF = "own", "off"
MOST_SENTENCES = 16_384
AT_ONCE = 256
Choice = str | Sequence[str] | None
"""``own``: the model's bank; ``off``; a file of sentences; sentences; None: a store keeps what it
has, and a new one takes the model's own bank where there is one."""


def read_hubness_texts(choice: Choice) -> tuple[str, ...]:
    """The sentences of a file, one a line, or those given; none for ``own`` and ``off``."""
    if choice is None or choice in (OWN, OFF):
        return ()
    if isinstance(choice, str):
        return read_file(choice, "own, off, or ")
    return _checked(choice)


def read_file(path: str, else_give: str = "") -> tuple[str, ...]:
    """Sentences, one a line, without doubles."""
    try:
        text = untrusted.read_text(Path(path).expanduser())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({cause_of(error)}); give {else_give}a file of sentences, one "
            "a line"
        ) from error
    return _checked(text.splitlines())


def _checked(lines: Sequence[str]) -> tuple[str, ...]:
    sentences = tuple(dict.fromkeys(clean_query(line) for line in lines if line.strip()))
    if not 1 <= len(sentences) <= MOST_SENTENCES:
        raise UsageError(
            f"a bank of {len(sentences)} sentences; give 1 to {MOST_SENTENCES}, some hundreds of "
            "the kind that people will ask"
        )
    return sentences


def choose_hubness_bank(choice: Choice, method: Method, model: str) -> HubBank | None:
    """The bank that was chosen, with the vectors of this model; None: no bank."""
    if choice is None or choice == OWN:
        bank = model_hubness_bank(method, model)
        if bank is None and choice == OWN:
            raise UsageError(
                f"--hubness own: {model} has no bank of sentences of its own; give a file of "
                "sentences, one a line, or off"
            )
        return bank
    sentences = read_hubness_texts(choice)
    return encode_hubness_bank(sentences, method) if sentences else None


@torch.no_grad()
def model_hubness_bank(method: Method, model: str) -> HubBank | None:
    """The bank that a model, or the head beside it, was saved with."""
    place = head_folder(model)
    if place is not None:
        # On a copy that shares the weights: a head may change what towers do, a store may not.
        shared = (*method.parameters(), *method.buffers(), method.tokenizer)
        method = with_head(copy.deepcopy(method, {id(each): each for each in shared}), place)
    found = method.level_bank
    if found is None:
        return None
    bank, scale = found
    vectors = bank.held().to("cpu", torch.float32).numpy()
    return HubBank("of the model's own", vectors, bank.weight, float(scale))


@torch.no_grad()
def encode_hubness_bank(sentences: Sequence[str], method: Method) -> HubBank:
    """With the weight and temperature of ``eaglenet evaluate --hubness``."""
    parts = [
        method.coarse_vectors(encode_sentences(method, sentences[start : start + AT_ONCE]))
        for start in range(0, len(sentences), AT_ONCE)
    ]
    vectors = torch.cat(parts).to("cpu", torch.float32).numpy()
    return HubBank("given", vectors, 1.0, TEMPERATURE, tuple(sentences))


def set_hubness_bank(store: Store, tables: ClipStore, bank: HubBank | None) -> Store:
    """The store with this bank from its next publication on, all of its clips included."""
    if (None if bank is None else bank.note) == store.manifest.hubness:
        return store if _is_whole(store) else store.with_bank(bank)
    if store.is_searched and missing_clips(tables):
        # Everything is derived anew, and clips that the tables lost would be gone.
        raise StoreError(
            f"the tables of {store.location} lack clips that can be searched; encode them again "
            "first, without --hubness"
        )
    return store.with_bank(bank)


def _is_whole(store: Store) -> bool:
    """Whether its bank can be read; one that was lost comes back when it is named again."""
    try:
        store.bank()
    except StoreError:
        return False
    return True
