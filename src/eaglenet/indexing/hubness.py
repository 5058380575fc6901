"""Choose and make the hubness bank of a store.

Some clips are close to every text and would match every query. Their scores are lowered by a
hubness offset, computed from a fixed bank of texts when they are indexed (``scoring.hubness`` has
the arithmetic, ``store.hubness`` the stored form).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from eaglenet.core import untrusted
from eaglenet.core.errors import UsageError, cause_of
from eaglenet.indexing.options import OFF, OWN, HubnessChoice
from eaglenet.models.files import head_folder
from eaglenet.models.light_model import LightModel, unit
from eaglenet.search.query import clean_text
from eaglenet.store.hubness import TEMPERATURE, HubnessBank

if TYPE_CHECKING:
    from eaglenet.methods.base import Method

MAX_TEXTS = 16_384
BATCH_TEXTS = 256


def read_hubness_texts(choice: HubnessChoice) -> tuple[str, ...]:
    """Return the texts of a file or sequence; none for ``own`` and ``off``."""
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
            f"a hubness bank of {len(texts)} texts; use 1 to {MAX_TEXTS}, best about a thousand "
            "that resemble the queries of your users"
        )
    return texts


def choose_hubness_bank(
    choice: HubnessChoice, method: Method | LightModel, model: str
) -> HubnessBank | None:
    """Return the chosen bank, encoded with this model; None without a bank."""
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


def model_hubness_bank(method: Method | LightModel, model: str) -> HubnessBank | None:
    """Return the bank that was saved with a model or with the head beside it."""
    if isinstance(method, LightModel):
        bank = method.bank
        parts = None if bank is None else (bank.vectors, bank.weight, bank.scale)
    else:
        from eaglenet.search.torch_model import hubness_layer

        parts = hubness_layer(method, head_folder(model))
    return None if parts is None else HubnessBank("of the model's own", *parts)


def encode_hubness_bank(texts: Sequence[str], method: Method | LightModel) -> HubnessBank:
    """Encode texts as a bank, with the weight and temperature of ``evaluate --hubness``."""
    if isinstance(method, LightModel):
        vectors = unit(method.encode_texts(texts))
    else:
        from eaglenet.search.torch_model import TorchModel

        starts = range(0, len(texts), BATCH_TEXTS)
        batches = (texts[start : start + BATCH_TEXTS] for start in starts)
        model = TorchModel(method)
        vectors = np.concatenate([model.encode_texts(batch).vectors for batch in batches])
    return HubnessBank("given", vectors, 1.0, TEMPERATURE, tuple(texts))
