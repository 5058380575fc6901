"""Demo world: synthetic scenes of events, and captions that describe them.

A scene has one or two *events*: a coloured shape of some size with a motion. Scenes come in pairs
of twins that differ only in time:

- ``sequence``: two events one after the other; the twin has the other order, and the same frames.
- ``passage``: two shapes enter or leave one after the other; the twin has the other order.
- ``single``: one motion; the twin is reversed in time (left/right, grows/shrinks, ...).

A caption names the colour, shape, size and motion of every event and their order, so it describes
only one scene of a split. Splits share no scene. Of the combinations of colour, shape and motion,
5% are reserved for ``val`` and 5% for ``test``; about half of their scenes have a combination that
is not in ``train``.

``DemoWorld(seed, num_unmentioned=n)`` fills one half of each clip with n events that no caption
mentions, as happens in real videos.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from eaglenet.core.errors import UsageError

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange", "white", "cyan")
SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond", "ring")
SIZES = {"small": 0.10, "big": 0.19}
"""Radii as fractions of the side of a frame."""
SPLITS = ("train", "val", "test")
NUM_FRAMES = 24
FRAMES_PER_SECOND = 8
CAPTIONS_PER_SCENE = 4

Point = tuple[float, float]
KINDS = ("sequence", "sequence", "sequence", "passage", "single")
"""Kinds of scenes, drawn with equal probability."""
REVERSED = {
    "left": "right",
    "right": "left",
    "up": "down",
    "down": "up",
    "grow": "shrink",
    "shrink": "grow",
    "enter": "leave",
    "leave": "enter",
}
"""Each motion with its reversal in time."""
FAMILY = {motion: min(motion, opposite) for motion, opposite in REVERSED.items()} | {
    "across": "across",
    "still": "still",
}
"""Name shared by a motion and its reversal."""
SEQUENCE_MOTIONS = ("left", "right", "up", "down", "grow", "shrink", "across", "still")
PASSAGE_MOTIONS = ("enter", "leave")

VERBS = {
    "left": ("moves left", "goes to the left", "slides left"),
    "right": ("moves right", "goes to the right", "slides right"),
    "up": ("moves up", "goes up", "rises"),
    "down": ("moves down", "goes down", "falls"),
    "across": ("moves across", "goes from corner to corner", "crosses the screen"),
    "grow": ("grows", "gets bigger", "becomes larger"),
    "shrink": ("shrinks", "gets smaller", "becomes smaller"),
    "still": ("stays still", "does not move", "stands still"),
    "enter": ("enters", "comes in", "enters the screen"),
    "leave": ("leaves", "goes out", "leaves the screen"),
}
SIZE_WORDS = {"small": ("small", "little"), "big": ("big", "large")}
ORDERED = (
    "{first} before {second}",
    "{first} then {second}",
    "first {first} and then {second}",
    "{second} after {first}",
    "after {first} {second}",
    "{first} and later {second}",
)
ALONE = ("{first}", "the video shows how {first}", "only {first}", "{first} alone")


@dataclass(frozen=True)
class Event:
    """A shape with a motion; positions and radii are fractions of the side, y points down."""

    colour: str
    shape: str
    size: str
    motion: str
    path: tuple[Point, Point] = ((0.5, 0.5), (0.5, 0.5))
    radii: tuple[float, float] = (0.1, 0.1)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Facts that captions mention."""
        return self.colour, self.shape, self.size, self.motion

    @property
    def combination(self) -> tuple[str, str, str]:
        """Combination that may be reserved for a split; the same for the reversed motion."""
        return self.colour, self.shape, FAMILY[self.motion]

    def reverse(self) -> Event:
        """Return the event reversed in time."""
        path, radii = (self.path[1], self.path[0]), (self.radii[1], self.radii[0])
        return replace(self, motion=REVERSED[self.motion], path=path, radii=radii)


@dataclass(frozen=True)
class Scene:
    """Description of a clip; ``boundary`` is the frame at which the second event begins."""

    scene_id: str
    split: str
    kind: str
    events: tuple[Event, ...]
    boundary: int
    background: tuple[int, int, int]
    captions: tuple[str, ...]
    twin_id: str | None
    unmentioned_events: tuple[Event, ...] = ()
    unmentioned_first: bool = False

    @property
    def all_events(self) -> tuple[Event, ...]:
        """Mentioned and unmentioned events, in the order of :meth:`spans`."""
        return self.events + self.unmentioned_events

    @property
    def key(self) -> tuple[tuple[str, str, str, str], ...]:
        return tuple(event.key for event in self.events)

    def spans(self) -> tuple[tuple[float, float], ...]:
        """Return the start and end of each event, as fractions of the clip."""
        middle = self.boundary / NUM_FRAMES
        spans = ((0.0, 1.0),) if len(self.events) == 1 else ((0.0, middle), (middle, 1.0))
        if not self.unmentioned_events:
            return spans
        count = len(self.unmentioned_events)
        other_spans = tuple((number / count, (number + 1) / count) for number in range(count))
        shift, other_shift = (0.5, 0.0) if self.unmentioned_first else (0.0, 0.5)
        return tuple((start / 2 + shift, end / 2 + shift) for start, end in spans) + tuple(
            (start / 2 + other_shift, end / 2 + other_shift) for start, end in other_spans
        )


class DemoWorld:
    """All scenes of a seed; a larger ``count`` adds scenes without changing the first ones."""

    def __init__(self, seed: int = 0, *, num_unmentioned: int = 0) -> None:
        if num_unmentioned < 0:
            raise UsageError(f"{num_unmentioned} unmentioned events; expected 0 or more")
        self.seed = seed
        self.num_unmentioned = num_unmentioned

    def scenes(self, split: str, count: int) -> list[Scene]:
        """Make ``count`` distinct scenes, with twins adjacent.

        With an odd count, nothing moves in the last scene, and it has no twin.
        """
        if split not in SPLITS:
            raise UsageError(f"the demo world has no split {split!r}; known: {', '.join(SPLITS)}")
        if count < 1:
            raise UsageError(f"{count} clips; expected at least 1")
        generator = np.random.default_rng([self.seed, SPLITS.index(split)])
        keys: set[object] = set()
        scenes: list[Scene] = []
        while len(scenes) + 1 < count:
            pair = self._draw_twins(generator, split, len(scenes))
            if pair[0].key not in keys:
                keys.update((pair[0].key, pair[1].key))
                scenes += pair
        if len(scenes) < count:
            scenes.append(self._draw_still(np.random.default_rng([self.seed, 99]), split, count))
        if self.num_unmentioned:
            scenes = [self._add_events(scene, number // 2) for number, scene in enumerate(scenes)]
        return scenes

    def _add_events(self, scene: Scene, pair: int) -> Scene:
        """Add unmentioned events to a scene; twins get the same ones."""
        split = SPLITS.index(scene.split)
        generator = np.random.default_rng([self.seed, split, self.num_unmentioned, pair])
        events = tuple(
            _draw_event(generator, SEQUENCE_MOTIONS, lane=None) for _ in range(self.num_unmentioned)
        )
        is_first = bool(generator.integers(2))
        return replace(scene, unmentioned_events=events, unmentioned_first=is_first)

    def reserved_split(self, combination: tuple[str, str, str]) -> str:
        """Return the split for which a combination is reserved; ``train`` if for none."""
        bucket = _bucket((self.seed, *combination), 20)
        return "test" if bucket == 0 else "val" if bucket == 1 else "train"

    def _draw_twins(
        self, generator: np.random.Generator, split: str, position: int
    ) -> tuple[Scene, Scene]:
        while True:
            kind = _pick(generator, KINDS)
            events = self._draw_events(generator, kind)
            if events is not None and self._belongs(events, split):
                break
        if kind == "single":
            boundary = twin_boundary = NUM_FRAMES
            twin_events: tuple[Event, ...] = (events[0].reverse(),)
        else:
            twin_events = events[::-1]
            boundary = int(generator.integers(NUM_FRAMES // 2 - 2, NUM_FRAMES // 2 + 3))
            twin_boundary = NUM_FRAMES - boundary
        names = [f"{split}-{position + offset:05d}" for offset in (0, 1)]
        background = _draw_background(generator)
        return (
            Scene(
                names[0], split, kind, events, boundary, background,
                _captions(generator, events), names[1],
            ),
            Scene(
                names[1], split, kind, twin_events, twin_boundary, background,
                _captions(generator, twin_events), names[0],
            ),
        )  # fmt: skip

    def _draw_events(self, generator: np.random.Generator, kind: str) -> tuple[Event, ...] | None:
        if kind == "single":
            return (_draw_event(generator, tuple(REVERSED), lane=None),)
        motions = PASSAGE_MOTIONS if kind == "passage" else SEQUENCE_MOTIONS
        upper_first = bool(generator.integers(2))
        lanes = (0.28, 0.72) if upper_first else (0.72, 0.28)
        first, second = (_draw_event(generator, motions, lane) for lane in lanes)
        if (first.colour, first.shape) == (second.colour, second.shape):
            return None
        return first, second

    def _belongs(self, events: tuple[Event, ...], split: str) -> bool:
        """Return whether events belong to a split: by reserved combinations, or else by a hash."""
        reserved_splits = {self.reserved_split(event.combination) for event in events} - {"train"}
        if reserved_splits:
            return reserved_splits == {split}
        keys = sorted((*event.key[:3], FAMILY[event.motion]) for event in events)
        bucket = _bucket((self.seed, *(word for key in keys for word in key)), 10)
        return split == ("test" if bucket == 0 else "val" if bucket == 1 else "train")

    def _draw_still(self, generator: np.random.Generator, split: str, count: int) -> Scene:
        while True:
            event = _draw_event(generator, ("still",), lane=None)
            if self._belongs((event,), split):
                break
        # An id of its own: with a larger count, another scene has this position.
        return Scene(
            f"{split}-{count - 1:05d}-still", split, "single", (event,), NUM_FRAMES,
            _draw_background(generator), _captions(generator, (event,)), None,
        )  # fmt: skip


def vocabulary() -> list[str]:
    """Return all words of captions, sorted."""
    phrases = [*COLOURS, *SHAPES, "a"]
    phrases += [adjective for adjectives in SIZE_WORDS.values() for adjective in adjectives]
    phrases += [verb for verbs in VERBS.values() for verb in verbs]
    phrases += [template.format(first="", second="") for template in (*ORDERED, *ALONE)]
    return sorted({word for phrase in phrases for word in phrase.split()})


def _bucket(values: tuple[object, ...], count: int) -> int:
    """Hash values to one of ``count`` buckets, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, values)).encode()).digest()
    return int.from_bytes(digest[:4], "big") % count


def _pick(generator: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(generator.integers(len(options)))]


def _draw_event(
    generator: np.random.Generator, motions: tuple[str, ...], lane: float | None
) -> Event:
    colour, shape = _pick(generator, COLOURS), _pick(generator, SHAPES)
    size, motion = _pick(generator, tuple(SIZES)), _pick(generator, motions)
    radius = SIZES[size]
    radii = {"grow": (0.5 * radius, 1.25 * radius), "shrink": (1.25 * radius, 0.5 * radius)}
    return Event(
        colour, shape, size, motion, _draw_path(generator, motion, lane),
        radii.get(motion, (radius, radius)),
    )  # fmt: skip


def _draw_path(
    generator: np.random.Generator, motion: str, lane: float | None
) -> tuple[Point, Point]:
    def between(low: float, high: float) -> float:
        return round(float(generator.uniform(low, high)), 4)

    near, far, middle = between(0.18, 0.32), between(0.68, 0.82), between(0.25, 0.75)
    inside, is_left = between(0.3, 0.7), bool(generator.integers(2))
    height = between(0.3, 0.7) if lane is None else lane
    outside = -0.25 if is_left else 1.25  # Farther than the largest radius.
    start, end = {
        "left": ((far, middle), (near, middle)),
        "right": ((near, middle), (far, middle)),
        "up": ((middle, far), (middle, near)),
        "down": ((middle, near), (middle, far)),
        "across": ((0.14, 0.14), (0.86, 0.86)) if is_left else ((0.86, 0.14), (0.14, 0.86)),
        "enter": ((outside, height), (inside, height)),
        "leave": ((inside, height), (outside, height)),
    }.get(motion, ((inside, middle), (inside, middle)))
    return start, end


def _draw_background(generator: np.random.Generator) -> tuple[int, int, int]:
    grey = int(generator.integers(18, 70))
    red, green, blue = (grey + int(shift) for shift in generator.integers(-8, 9, size=3))
    return red, green, blue


def _captions(generator: np.random.Generator, events: tuple[Event, ...]) -> tuple[str, ...]:
    """Write distinct captions of the same events."""
    templates = ORDERED if len(events) == 2 else ALONE
    order = generator.permutation(len(templates))[:CAPTIONS_PER_SCENE]
    captions = []
    for number in order:
        clauses = [_clause(generator, event) for event in events]
        names = dict(zip(("first", "second"), clauses, strict=False))
        captions.append(templates[int(number)].format(**names))
    return tuple(captions)


def _clause(generator: np.random.Generator, event: Event) -> str:
    size = _pick(generator, SIZE_WORDS[event.size])
    verb = _pick(generator, VERBS[event.motion])
    return f"a {size} {event.colour} {event.shape} {verb}"
