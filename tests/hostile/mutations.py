"""Damage that knows what it damages: values of JSON, lines of text, bytes of containers."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**63,
    -(2**63),
    10**30,
    1e308,
    -0.0,
    1e-320,
    float("nan"),
    float("inf"),
    "",
    "0",
    "\x00",
    "\x1b[2J",
    "../../etc/passwd",
    "a" * 5000,
    "\u202e",
    "\ud800",
    [],
    {},
    [[]],
    [None],
    [-1, 2**40],
    {"": None},
]
SIZES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value lies in a tree of JSON."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in list(value.items())[:50]:
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value[:20]):
            found += places(inner, (*path, number))
    return found


def mutate_json(value: Any, chance: random.Random) -> Any:
    """A copy with one to three places changed, removed, doubled or nested."""
    tree = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        path = chance.choice(places(tree))
        if not path:
            if chance.random() < 0.1:
                return chance.choice(ODD_VALUES)
            continue
        parent = tree
        for step in path[:-1]:
            parent = parent[step]
        kind = chance.randrange(7)
        if kind == 0:
            del parent[path[-1]]
        elif kind == 1 and isinstance(parent, dict):
            parent[chance.choice(["", "extra", "__proto__", "\u00e9"])] = chance.choice(ODD_VALUES)
        elif kind == 2:
            parent[path[-1]] = nested(chance.choice([3, 90, 200]))
        elif kind == 3 and isinstance(parent[path[-1]], (int, float)):
            parent[path[-1]] = parent[path[-1]] * chance.choice([-1, 0, 0.5, 2, 1e6, 1e12])
        elif kind == 4:
            other = chance.choice(places(tree))
            found = tree
            for step in other:
                found = found[step]
            parent[path[-1]] = copy.deepcopy(found)
        else:
            parent[path[-1]] = copy.deepcopy(chance.choice(ODD_VALUES))
    return tree


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def mutated_json_bytes(content: bytes, chance: random.Random) -> bytes:
    """Mostly JSON again; now and then only nearly, or far too deep."""
    kind = chance.random()
    if kind < 0.1:
        return mutate_bytes(content, chance)
    if kind < 0.12:
        return b"[" * 100_000
    if kind < 0.14:
        return b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    if kind < 0.15:
        return b"1" * 10_000
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return mutate_bytes(content, chance)  # A damaged one that is damaged further.
    return json.dumps(mutate_json(value, chance)).encode()


def mutated_lines(content: bytes, chance: random.Random) -> bytes:
    """Lines taken out, doubled, swapped, changed; separators and odd signs put in."""
    if chance.random() < 0.2:
        return mutate_bytes(content, chance)
    lines = content.split(b"\n")
    odd = [
        b"",
        b"\x00",
        b"\xff\xfe",
        b",,,,",
        b'"',
        b"\t",
        b"a" * 20_000,
        b"-1",
        b"1e999",
        b"{",
        b"\r",
    ]
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(lines)) if lines else 0
        kind = chance.randrange(4)
        if kind == 0 and lines:
            del lines[place]
        elif kind == 1 and lines:
            lines.insert(place, lines[place])
        elif kind == 2:
            lines.insert(place, chance.choice(odd))
        elif lines:
            line = lines[place]
            cut = chance.randrange(len(line) + 1)
            lines[place] = line[:cut] + chance.choice(odd) + line[cut:]
    return b"\n".join(lines)


def mutate_bytes(content: bytes, chance: random.Random) -> bytes:
    """Bits flipped, blocks zeroed, moved, doubled or cut out, lengths that lie, the end cut off."""
    data = bytearray(content)
    for _ in range(chance.choice([1, 1, 2, 4, 16])):
        if not data:
            break
        place = chance.randrange(len(data))
        size = chance.choice([1, 2, 4, 8, 64, 512])
        kind = chance.randrange(8)
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place : place + size] = bytes(min(size, len(data) - place))
        elif kind == 2:
            data[place : place + size] = chance.randbytes(min(size, len(data) - place))
        elif kind == 3:
            width = chance.choice([1, 2, 4, 8])
            number = chance.choice(SIZES) & (256**width - 1)
            order = chance.choice(["big", "little"])
            data[place : place + width] = number.to_bytes(width, order)  # type: ignore[arg-type]
        elif kind == 4:
            del data[place : place + size]
        elif kind == 5:
            data[place:place] = data[place : place + size]
        elif kind == 6:
            other = chance.randrange(len(data))
            data[place : place + size], data[other : other + size] = (
                data[other : other + size],
                data[place : place + size],
            )
        elif chance.random() < 0.3:
            del data[place:]
    return bytes(data)
