"""Hubness bank of a store: which one to use, and how to make one.

Some clips are close to every text and would match every query. Their scores are lowered by a
hubness offset, computed from a fixed bank of texts when they are indexed (``scoring.hubness`` has
the arithmetic, ``store.hubness`` the stored form).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of
from eaglenet.indexing.options import OFF, OWN, HubnessChoice
from eaglenet.methods.base import Method
from eaglenet.models.head import head_folder, with_head
from eaglenet.scoring.hubness import TEMPERATURE
from eaglenet.search.query import clean_text
from eaglenet.store.hubness import HubnessBank

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


def choose_hubness_bank(choice: HubnessChoice, method: Method, model: str) -> HubnessBank | None:
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
def model_hubness_bank(method: Method, model: str) -> HubnessBank | None:
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
    return HubnessBank("of the model's own", vectors, bank.weight, float(scale))


@torch.no_grad()
def encode_hubness_bank(texts: Sequence[str], method: Method) -> HubnessBank:
    """Encode texts as a bank, with the weight and temperature of ``evaluate --hubness``."""
    batches = [
        method.coarse_vectors(method.encode_text(texts[start : start + BATCH_TEXTS]))
        for start in range(0, len(texts), BATCH_TEXTS)
    ]
    vectors = torch.cat(batches).to("cpu", torch.float32).numpy()
    return HubnessBank("given", vectors, 1.0, TEMPERATURE, tuple(texts))
