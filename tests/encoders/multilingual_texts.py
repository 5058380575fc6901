"""Sentences in ten scripts, with emoji, right-to-left text, control and rare characters."""

from __future__ import annotations

import random

SCRIPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "latin": ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x17F)),
    "greek": ((0x391, 0x3A1), (0x3A3, 0x3C9)),
    "cyrillic": ((0x410, 0x44F), (0x401, 0x401)),
    "arabic": ((0x621, 0x63A), (0x641, 0x652)),
    "hebrew": ((0x5D0, 0x5EA), (0x5B0, 0x5B9)),
    "devanagari": ((0x905, 0x939), (0x93E, 0x94D)),
    "thai": ((0xE01, 0xE2E), (0xE30, 0xE39)),
    "han": ((0x4E00, 0x4FFF),),
    "kana": ((0x3041, 0x3096), (0x30A1, 0x30FA), (0xFF66, 0xFF9D)),
    "hangul": ((0xAC00, 0xADFF), (0x1100, 0x1112)),
}
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
EMOJI = ["\U0001f600", FAMILY, "\U0001f1eb\U0001f1f7", "\u2764\ufe0f"]
ODD = [*"\u200b\u200f\u202e\ufeff\t\n\x07\x1f\x7f\u00a0\u3000"]
PUNCTUATION = [*"!?.,;:'\"()-_/\\&%#@*+=<>[]{}|~^`$\u2026\u201c\u3002\u060c"]
DIGITS = [*"0123456789", "\u0663", "\u096a", "\uff15", "\u00bd", "\u2168"]
COMBINING = ["\u0301", "\u0308", "\u0327"]


def letters_of(script: str) -> list[str]:
    return [chr(code) for low, high in SCRIPTS[script] for code in range(low, high + 1)]


def generated_sentences(count: int, seed: int = 0) -> list[str]:
    """Return ``count`` sentences, each mostly in one script; a few are empty or very long."""
    chance = random.Random(seed)
    alphabets = {script: letters_of(script) for script in SCRIPTS}
    sentences = []
    for _ in range(count):
        letters = alphabets[chance.choice(list(SCRIPTS))]
        words = []
        for _ in range(chance.choice([0, 1, 2, 3, 5, 8, 12, 40])):
            kind = chance.random()
            if kind < 0.72:
                words.append("".join(chance.choices(letters, k=chance.randint(1, 9))))
            elif kind < 0.80:
                words.append("".join(chance.choices(DIGITS, k=chance.randint(1, 4))))
            elif kind < 0.88:
                words.append(chance.choice(EMOJI))
            elif kind < 0.94:
                words.append(chance.choice(PUNCTUATION) * chance.randint(1, 3))
            elif kind < 0.97:
                words.append(chance.choice(letters) + chance.choice(COMBINING))
            else:
                words.append(chance.choice(ODD))
        sentences.append(chance.choice([" ", " ", "  ", ""]).join(words))
    return sentences
