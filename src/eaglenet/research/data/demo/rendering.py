"""Draws scenes of the demo world: numpy only, many frames at once, the same on every machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eaglenet.core.types import Clips
from eaglenet.research.data.demo.world import (
    COLOURS,
    FRAMES_PER_SECOND,
    NUM_FRAMES,
    SHAPES,
    Event,
    Scene,
)

FRAME_SIZE = 96
RGB = {
    "red": (215, 40, 40),
    "green": (45, 170, 60),
    "blue": (45, 85, 230),
    "yellow": (240, 220, 50),
    "purple": (150, 60, 190),
    "orange": (245, 135, 25),
    "white": (242, 242, 242),
    "cyan": (60, 205, 215),
}
CHUNK = 256  # shapes drawn at once: bounds the temporaries at some tens of MB

Array = NDArray[Any]


def _triangle(x: Array, y: Array) -> Array:
    slope = np.float32(np.sqrt(3) / 2)
    sides = np.maximum(slope * x - 0.5 * y, -slope * x - 0.5 * y)
    distance: Array = np.maximum(sides, y) - 0.5
    return distance


def _star(x: Array, y: Array) -> Array:
    """Five points at radius 1, five corners at 0.45: the distance to one edge of ten, folded."""
    radius, step = np.hypot(x, y), np.pi / 5
    angle = np.abs((np.arctan2(x, -y) + step) % (2 * step) - step)
    corner = np.array([0.45 * np.cos(step), 0.45 * np.sin(step)])
    edge = corner - np.array([1.0, 0.0])
    normal = np.array([edge[1], -edge[0]]) / np.hypot(*edge)
    along, beside = radius * np.cos(angle), radius * np.sin(angle)
    distance: Array = (along - 1.0) * normal[0] + beside * normal[1]
    return distance


def _cross(x: Array, y: Array) -> Array:
    wide, tall = np.abs(x), np.abs(y)
    flat, upright = np.maximum(wide - 1, tall - 0.33), np.maximum(wide - 0.33, tall - 1)
    distance: Array = np.minimum(flat, upright)
    return distance


# Signed distance (negative inside) of a shape of radius 1; y points down.
OUTLINES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) - 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - np.float32(0.85),
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "diamond": lambda x, y: (np.abs(x) + np.abs(y) - 1) / np.float32(np.sqrt(2)),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - np.float32(0.72)) - np.float32(0.26),
}


def frame_indices(num_frames: int, total: int = NUM_FRAMES) -> NDArray[np.int64]:
    """The frame in the middle of each of ``num_frames`` equal segments."""
    middles = (np.arange(num_frames) + 0.5) * total / num_frames
    indices: NDArray[np.int64] = np.floor(middles).astype(np.int64)
    return indices


def render(scene: Scene, size: int = FRAME_SIZE) -> NDArray[np.uint8]:
    """Every frame of one clip, ``[frames, size, size, 3]`` uint8."""
    frames: NDArray[np.uint8] = _draw([scene], np.arange(NUM_FRAMES), size)[0]
    return frames


def render_batch(scenes: Sequence[Scene], num_frames: int, size: int) -> Clips:
    """Clips without files: the frames that decoding would have taken, undamaged by a codec."""
    indices = frame_indices(num_frames)
    frames = torch.from_numpy(_draw(scenes, indices, size)).movedim(-1, 2).contiguous()
    seconds = torch.from_numpy(indices / FRAMES_PER_SECOND).float()
    return Clips(
        frames=frames,
        mask=torch.ones(len(scenes), num_frames, dtype=torch.bool),
        seconds=seconds.expand(len(scenes), -1).contiguous(),
    )


def _draw(scenes: Sequence[Scene], frames: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """``[scenes, frames, size, size, 3]``: backgrounds, then events in order of appearance."""
    times = (frames + 0.5) / NUM_FRAMES
    background = np.array([scene.background for scene in scenes], dtype=np.uint8)
    canvas = np.empty((len(scenes), len(frames), size, size, 3), dtype=np.uint8)
    canvas[:] = background[:, None, None, None, :]
    for number in range(max(len(scene.drawn) for scene in scenes)):
        for shape in SHAPES:
            rows = [
                row
                for row, scene in enumerate(scenes)
                if number < len(scene.drawn) and scene.drawn[number].shape == shape
            ]
            if rows:
                _draw_events(canvas, scenes, rows, number, times)
    return canvas


def _draw_events(
    canvas: NDArray[np.uint8],
    scenes: Sequence[Scene],
    rows: list[int],
    number: int,
    times: NDArray[np.float64],
) -> None:
    """Draw event ``number`` of the scenes ``rows``, all of one shape, where it is visible."""
    events = [scenes[row].drawn[number] for row in rows]
    spans = np.array([scenes[row].spans()[number] for row in rows])
    progress = np.clip((times - spans[:, :1]) / (spans[:, 1:] - spans[:, :1]), 0, 1)
    path = np.array([event.path for event in events])  # [events, ends, xy]
    radii = np.array([event.radii for event in events])
    centre = path[:, None, 0] + progress[..., None] * (path[:, None, 1] - path[:, None, 0])
    radius = radii[:, :1] + progress * (radii[:, 1:] - radii[:, :1])
    event_at, frame_at = np.nonzero(_visible(events, spans, times))
    colours = np.array([RGB[event.colour] for event in events], dtype=np.float32)
    for start in range(0, len(event_at), CHUNK):
        part, frame = event_at[start : start + CHUNK], frame_at[start : start + CHUNK]
        _stamp(
            canvas,
            (np.asarray(rows)[part], frame),
            OUTLINES[events[0].shape],
            centre[part, frame].astype(np.float32),
            radius[part, frame].astype(np.float32),
            colours[part],
        )


def _visible(
    events: list[Event], spans: NDArray[np.float64], times: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """During its own event; what leaves is there before it, what has entered stays."""
    leaves = np.array([event.motion == "leave" for event in events])[:, None]
    enters = np.array([event.motion == "enter" for event in events])[:, None]
    has_begun, is_over = times >= spans[:, :1], times >= spans[:, 1:]
    visible: NDArray[np.bool_] = (has_begun | leaves) & (~is_over | enters)
    return visible


def _stamp(
    canvas: NDArray[np.uint8],
    where: tuple[NDArray[np.int64], NDArray[np.int64]],
    outline: Callable[[Array, Array], Array],
    centre: Array,
    radius: Array,
    colour: Array,
) -> None:
    """Blend shapes into the square of pixels around each of them, edges one pixel soft."""
    size = canvas.shape[2]
    reach = int(np.ceil(radius.max() * size)) + 2
    offsets = np.arange(-reach, reach + 1)
    column = np.floor(centre[:, :1] * size).astype(np.int64) + offsets  # [shapes, width]
    row = np.floor(centre[:, 1:] * size).astype(np.int64) + offsets
    scale = (radius * size)[:, None]
    x = ((column + np.float32(0.5) - centre[:, :1] * size) / scale).astype(np.float32)
    y = ((row + np.float32(0.5) - centre[:, 1:] * size) / scale).astype(np.float32)
    pixels = outline(x[:, None, :], y[:, :, None]) * scale[..., None]
    alpha = np.clip(0.5 - pixels, 0, 1)  # [shapes, height, width]
    across, down = (column >= 0) & (column < size), (row >= 0) & (row < size)
    index = np.nonzero((alpha > 0) & across[:, None, :] & down[:, :, None])
    scene, frame = (position[index[0]] for position in where)
    target = (scene, frame, row[index[0], index[1]], column[index[0], index[2]])
    weight = alpha[index][:, None]
    blended = canvas[target] * (1 - weight) + colour[index[0]] * weight
    canvas[target] = np.round(blended).astype(np.uint8)


def nearest_colour(pixel: Sequence[float]) -> str:
    """Name of the world's colour nearest to an RGB pixel."""
    distances = {name: sum((a - b) ** 2 for a, b in zip(pixel, RGB[name], strict=True))
                 for name in COLOURS}  # fmt: skip
    return min(distances, key=lambda name: distances[name])
