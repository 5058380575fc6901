"""The head of towers that were made of pairs: captions of training level videos near to any."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch

from eaglenet.data.frame_folder import FrameItem
from eaglenet.methods.base import METHODS
from eaglenet.methods.folder import load
from eaglenet.methods.head import FOLDER, save_head
from eaglenet.methods.wordframe import WordFrame, WordFrameConfig

TEXTS_AT_ONCE = 100


def typical_sentences(items: Sequence[FrameItem], number: int) -> list[str]:
    """Random captions that people wrote of videos, or of pictures where there are no videos."""
    videos = [item for item in items if item.frames > 1]
    written = [sentence for item in videos or items for sentence in item.captions.get("people", [])]
    chosen = sorted(set(written))
    return random.Random(0).sample(chosen, min(number, len(chosen)))


@torch.inference_mode()
def save_level_head(model: Path, sentences: Sequence[str], weight: float) -> None:
    """Beside the towers in ``model``: `wordframe` without its interaction, a bank of these.

    Their vectors are kept, and not the sentences; in int8, for twice as many that take the space of
    half precision level better, and the rounding changes nothing.
    """
    towers = load(model)
    config = WordFrameConfig(
        num_layers=0, changes=False, interaction=False, bank=len(sentences), bank_weight=weight
    )
    # Built as a method is: the level is computed with the temperature of the towers.
    head = METHODS["wordframe"].build(config, towers.encoder)
    assert isinstance(head, WordFrame) and head.bank is not None  # noqa: PT018
    for start in range(0, len(sentences), TEXTS_AT_ONCE):
        texts = towers.encode_text(sentences[start : start + TEXTS_AT_ONCE])
        head.bank.add(texts.sentence)
    save_head(head, model / FOLDER, storage="int8")
