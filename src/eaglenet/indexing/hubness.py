"""Hubness bank of a store: which one to use, and how to make one.

Some clips are close to every text and would match every query. Their scores are lowered by a
hubness offset, computed from a fixed bank of texts when they are indexed (``scoring.hubness`` has
the arithmetic, ``search.store.hub_bank`` the stored form).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from eaglenet.core import untrusted
from eaglenet.core.errors import StoreError, UsageError, cause_of, shell_quote
from eaglenet.indexing.options import HubnessChoice
from eaglenet.methods.base import Method
from eaglenet.models.head import head_folder, with_head
from eaglenet.scoring.hubness import TEMPERATURE
from eaglenet.search.query import clean_text
from eaglenet.search.store.hub_bank import HubBank
from eaglenet.search.store.publishing import missing_clips

if TYPE_CHECKING:
    from eaglenet.search.store.base import Store
    from eaglenet.search.store.tables import ClipStore

OWN, OFF = "own", "off"
MAX_TEXTS = 16_384
BATCH_TEXTS = 256


def read_hubness_texts(choice: HubnessChoice) -> tuple[str, ...]:
    """Texts of a file or sequence; none for ``own`` and ``off``."""
    if choice is None or choice in (OWN, OFF):
        return ()
    if isinstance(choice, str):
        return read_text_file(choice, "own, off, or ")
    return _unique_texts(choice)


def read_text_file(path: str, alternatives: str = "") -> tuple[str, ...]:
    """Read unique texts, one per line; ``alternatives`` is for the error message."""
    try:
        text = untrusted.read_text(Path(path).expanduser())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot read it ({cause_of(error)}); use {alternatives}a file with one text "
            "per line"
        ) from error
    return _unique_texts(text.splitlines())


def _unique_texts(lines: Sequence[str]) -> tuple[str, ...]:
    texts = tuple(dict.fromkeys(clean_text(line) for line in lines if line.strip()))
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise UsageError(
            f"a hubness bank of {len(texts)} texts; use 1 to {MAX_TEXTS}, best some hundreds like "
            "the queries that people will type"
        )
    return texts


def choose_hubness_bank(choice: HubnessChoice, method: Method, model: str) -> HubBank | None:
    """The chosen bank, encoded with this model; None: no bank."""
    if choice is None or choice == OWN:
        bank = model_hubness_bank(method, model)
        if bank is None and choice == OWN:
            raise UsageError(
                f"--hubness own: {model} has no hubness bank; use a file with one text per line, "
                "or off"
            )
        return bank
    texts = read_hubness_texts(choice)
    return encode_hubness_bank(texts, method) if texts else None


@torch.no_grad()
def model_hubness_bank(method: Method, model: str) -> HubBank | None:
    """Bank that was saved with a model, or with the head beside it."""
    folder = head_folder(model)
    if folder is not None:
        # On a copy that shares the weights: a head may change the towers, the store may not.
        shared = (*method.parameters(), *method.buffers(), method.tokenizer)
        method = with_head(copy.deepcopy(method, {id(each): each for each in shared}), folder)
    level_bank = method.level_bank
    if level_bank is None:
        return None
    bank, scale = level_bank
    vectors = bank.held().to("cpu", torch.float32).numpy()
    return HubBank("of the model's own", vectors, bank.weight, float(scale))


@torch.no_grad()
def encode_hubness_bank(texts: Sequence[str], method: Method) -> HubBank:
    """Encode texts as a bank, with the weight and temperature of ``evaluate --hubness``."""
    batches = [
        method.coarse_vectors(method.encode_text(texts[start : start + BATCH_TEXTS]))
        for start in range(0, len(texts), BATCH_TEXTS)
    ]
    vectors = torch.cat(batches).to("cpu", torch.float32).numpy()
    return HubBank("given", vectors, 1.0, TEMPERATURE, tuple(texts))


def set_hubness_bank(store: Store, tables: ClipStore, bank: HubBank | None) -> Store:
    """The store with this bank, which its next publication applies to all clips."""
    if (None if bank is None else bank.note) == store.manifest.hubness:
        return store if _is_bank_readable(store) else store.with_bank(bank)
    if store.is_searched and missing_clips(tables):
        # Publishing starts from the tables, so clips missing there would be lost.
        raise StoreError(
            f"the tables of {store.location} lack clips that can be searched; encode them again "
            f"first, without --hubness: eaglenet index FOLDER --store {shell_quote(store.location)}"
        )
    return store.with_bank(bank)


def _is_bank_readable(store: Store) -> bool:
    """Whether the bank can be read; a lost one is written again when it is chosen again."""
    try:
        store.bank()
    except StoreError:
        return False
    return True
