"""Demo world as a dataset, rendered to H.264 files or in memory.

Scenes and captions are from :mod:`eaglenet.research.data.demo.world`. Rendering uses only numpy, in
batches of frames, with the same result on every machine.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import ConfigError, DatasetError, UsageError
from eaglenet.core.files import atomic_write, read_json, write_json, write_text
from eaglenet.core.platform import num_cores
from eaglenet.core.progress import Progress, activity, report_progress
from eaglenet.core.types import Clips, Expert, FrameSpec, TextFeatures, VideoFeatures
from eaglenet.research.data.demo.world import (
    FRAMES_PER_SECOND,
    NUM_FRAMES,
    SHAPES,
    SPLITS,
    DemoWorld,
    Event,
    Scene,
    vocabulary,
)
from eaglenet.research.data.experts import add_experts
from eaglenet.research.data.features import save_feature_folder
from eaglenet.research.data.records import (
    DATASETS,
    DatasetSpec,
    RetrievalProtocol,
    Split,
    VideoRecord,
    check_options,
    check_split_name,
    make_split,
)
from eaglenet.research.data.role_graphs import role_graphs
from eaglenet.research.data.sources import (
    DataChoice,
    OpenContext,
    Source,
    SourceSpec,
    add_source,
    clip_source,
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
CHUNK = 256
"""Shapes drawn at a time; limits temporary memory to tens of MB."""

Array = NDArray[Any]


def _triangle(x: Array, y: Array) -> Array:
    slope = np.float32(np.sqrt(3) / 2)
    sides = np.maximum(slope * x - 0.5 * y, -slope * x - 0.5 * y)
    distance: Array = np.maximum(sides, y) - 0.5
    return distance


def _star(x: Array, y: Array) -> Array:
    """Return the distance to a star with five points at radius 1 and five corners at 0.45."""
    radius, step = np.hypot(x, y), np.pi / 5
    angle = np.abs((np.arctan2(x, -y) + step) % (2 * step) - step)
    corner = np.array([0.45 * np.cos(step), 0.45 * np.sin(step)])
    edge = corner - np.array([1.0, 0.0])
    normal = np.array([edge[1], -edge[0]]) / np.hypot(*edge)
    folded_x, folded_y = radius * np.cos(angle), radius * np.sin(angle)
    distance: Array = (folded_x - 1.0) * normal[0] + folded_y * normal[1]
    return distance


def _cross(x: Array, y: Array) -> Array:
    x, y = np.abs(x), np.abs(y)
    distance: Array = np.minimum(np.maximum(x - 1, y - 0.33), np.maximum(x - 0.33, y - 1))
    return distance


OUTLINES: dict[str, Callable[[Array, Array], Array]] = {
    "circle": lambda x, y: np.hypot(x, y) - 1,
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) - np.float32(0.85),
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "diamond": lambda x, y: (np.abs(x) + np.abs(y) - 1) / np.float32(np.sqrt(2)),
    "ring": lambda x, y: np.abs(np.hypot(x, y) - np.float32(0.72)) - np.float32(0.26),
}
"""Signed distances (negative inside) of shapes of radius 1; y points down."""


def frame_indices(num_frames: int) -> NDArray[np.int64]:
    """Return the indices of the middle frames of ``num_frames`` equal segments of a clip."""
    middles = (np.arange(num_frames) + 0.5) * NUM_FRAMES / num_frames
    indices: NDArray[np.int64] = np.floor(middles).astype(np.int64)
    return indices


def render(scene: Scene, size: int = FRAME_SIZE) -> NDArray[np.uint8]:
    """Render all frames of a clip, ``[frames, size, size, 3]``."""
    frames: NDArray[np.uint8] = _draw([scene], np.arange(NUM_FRAMES), size)[0]
    return frames


def render_batch(scenes: Sequence[Scene], num_frames: int, size: int) -> Clips:
    """Render the frames that decoding would sample, without files and compression."""
    indices = frame_indices(num_frames)
    frames = torch.from_numpy(_draw(scenes, indices, size)).movedim(-1, 2).contiguous()
    seconds = torch.from_numpy(indices / FRAMES_PER_SECOND).float()
    return Clips(
        frames=frames,
        mask=torch.ones(len(scenes), num_frames, dtype=torch.bool),
        seconds=seconds.expand(len(scenes), -1).contiguous(),
    )


def _draw(scenes: Sequence[Scene], frames: NDArray[np.int64], size: int) -> NDArray[np.uint8]:
    """Draw backgrounds and events, ``[scenes, frames, size, size, 3]``."""
    times = (frames + 0.5) / NUM_FRAMES
    background = np.array([scene.background for scene in scenes], dtype=np.uint8)
    canvas = np.empty((len(scenes), len(frames), size, size, 3), dtype=np.uint8)
    canvas[:] = background[:, None, None, None, :]
    for number in range(max(len(scene.all_events) for scene in scenes)):
        for shape in SHAPES:
            rows = [
                row
                for row, scene in enumerate(scenes)
                if number < len(scene.all_events) and scene.all_events[number].shape == shape
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
    """Draw event ``number`` of the scenes ``rows``, which have the same shape there."""
    events = [scenes[row].all_events[number] for row in rows]
    spans = np.array([scenes[row].spans()[number] for row in rows])
    progress = np.clip((times - spans[:, :1]) / (spans[:, 1:] - spans[:, :1]), 0, 1)
    path = np.array([event.path for event in events])  # [events, ends, xy]
    radii = np.array([event.radii for event in events])
    centre = path[:, None, 0] + progress[..., None] * (path[:, None, 1] - path[:, None, 0])
    radius = radii[:, :1] + progress * (radii[:, 1:] - radii[:, :1])
    visible_events, visible_frames = np.nonzero(_visibility_mask(events, spans, times))
    colours = np.array([RGB[event.colour] for event in events], dtype=np.float32)
    for start in range(0, len(visible_events), CHUNK):
        event = visible_events[start : start + CHUNK]
        frame = visible_frames[start : start + CHUNK]
        _stamp(
            canvas,
            (np.asarray(rows)[event], frame),
            OUTLINES[events[0].shape],
            centre[event, frame].astype(np.float32),
            radius[event, frame].astype(np.float32),
            colours[event],
        )


def _visibility_mask(
    events: list[Event], spans: NDArray[np.float64], times: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return the frames in which shapes are visible.

    A shape is visible during its event, before it if it leaves, and after it if it enters.
    """
    leaves = np.array([event.motion == "leave" for event in events])[:, None]
    enters = np.array([event.motion == "enter" for event in events])[:, None]
    has_begun, is_over = times >= spans[:, :1], times >= spans[:, 1:]
    is_visible: NDArray[np.bool_] = (has_begun | leaves) & (~is_over | enters)
    return is_visible


def _stamp(
    canvas: NDArray[np.uint8],
    scene_and_frame: tuple[NDArray[np.int64], NDArray[np.int64]],
    outline: Callable[[Array, Array], Array],
    centre: Array,
    radius: Array,
    colour: Array,
) -> None:
    """Blend antialiased shapes into the canvas; each changes only the square around it."""
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
    in_width, in_height = (column >= 0) & (column < size), (row >= 0) & (row < size)
    index = np.nonzero((alpha > 0) & in_width[:, None, :] & in_height[:, :, None])
    scene, frame = (indices[index[0]] for indices in scene_and_frame)
    target = (scene, frame, row[index[0], index[1]], column[index[0], index[2]])
    weight = alpha[index][:, None]
    values = canvas[target] * (1 - weight) + colour[index[0]] * weight
    canvas[target] = np.round(values).astype(np.uint8)


logger = logging.getLogger(__name__)

COUNTS: Mapping[str, int] = {"train": 4000, "val": 400, "test": 1000}
CAPTIONS_FILE = "captions.jsonl"
WORLD_FILE = "world.json"
RENDER_CHUNK = 64
"""Clips rendered at a time."""


@dataclass(frozen=True)
class DemoSplit(Split):
    scenes: tuple[Scene, ...] = ()


def demo_split(
    split: str,
    *,
    train: int = COUNTS["train"],
    val: int = COUNTS["val"],
    test: int = COUNTS["test"],
    seed: int = 0,
    unmentioned: int = 0,
) -> DemoSplit:
    """Make a split without files, for :func:`render_clips`.

    train, val, test: number of clips of each split. unmentioned: events per clip that no caption
    mentions.
    """
    check_split_name("demo", split, SPLITS)
    world = DemoWorld(seed, num_unmentioned=unmentioned)
    scenes = world.scenes(split, {"train": train, "val": val, "test": test}[split])
    return _demo_records(scenes, split, folder=None)


def render_clips(split: DemoSplit, spec: FrameSpec) -> Clips:
    """Render all clips of a split in memory, with the frames that ``spec`` samples."""
    if spec.sampling != "uniform":
        raise ConfigError(
            f"sampling={spec.sampling!r} needs video files of the demo world: use render_world, or "
            "sampling='uniform'"
        )
    batches = [
        render_batch(split.scenes[start : start + RENDER_CHUNK], spec.num_frames, spec.size)
        for start in range(0, len(split.scenes), RENDER_CHUNK)
    ]
    return Clips.concatenate(batches)


def render_world(
    folder: Path | str,
    split: str = "test",
    count: int | None = None,
    workers: int | None = None,
    *,
    seed: int = 0,
    unmentioned: int = 0,
    size: int = FRAME_SIZE,
    progress: Progress | None = None,
) -> DemoSplit:
    """Write a split as H.264 files with ``captions.jsonl``, and return its records.

    Several splits may share a folder. Existing files are kept, so that an interrupted call can be
    repeated.

    Raises:
        DatasetError: the folder contains another world, or frames of another size.
    """
    check_split_name("demo", split, SPLITS)
    folder = Path(folder)
    world = DemoWorld(seed, num_unmentioned=unmentioned)
    scenes = world.scenes(split, count if count is not None else COUNTS[split])
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    settings = {"seed": seed, "size": size, "frames": NUM_FRAMES, "fps": FRAMES_PER_SECOND}
    _store_settings(folder, settings | ({"unmentioned": unmentioned} if unmentioned else {}))
    new_scenes = [scene for scene in scenes if not _video_path(folder, scene).exists()]
    with ThreadPoolExecutor(workers or min(4, num_cores())) as pool:
        # Threads are enough: encoding releases the interpreter lock.
        results = pool.map(lambda scene: _write_scene(folder, scene, size), new_scenes)
        for number, _ in enumerate(results, len(scenes) - len(new_scenes) + 1):
            report_progress(progress, "rendering clips", number, len(scenes))
    _write_captions(folder, split, scenes)
    logger.info("%s: %d of %d clips rendered", folder, len(new_scenes), len(scenes))
    return _demo_records(scenes, split, folder)


def load(
    root: Path | str,
    split: str = "test",
    *,
    count: int | None = None,
    seed: int = 0,
    unmentioned: int = 0,
) -> Split:
    """Load a split of the demo world in ``root``; missing clips are rendered."""
    with activity(f"rendering the {split} split of the demo world"):
        return render_world(root, split, count, seed=seed, unmentioned=unmentioned)


def demo_tokenizer_folder() -> Path:
    """Return the folder of the model ``demo``, which has the tokenizer of the demo world."""
    return Path(__file__).parents[3] / "models" / "demo"


def _demo_records(scenes: list[Scene], split: str, folder: Path | None) -> DemoSplit:
    videos = [
        VideoRecord(scene.scene_id, scene.captions, _video_path(folder, scene) if folder else None)
        for scene in scenes
    ]
    plain = make_split("demo", split, RetrievalProtocol("demo world"), videos)
    return DemoSplit(plain.dataset, split, plain.protocol, plain.videos, (), tuple(scenes))


def _video_path(folder: Path, scene: Scene) -> Path:
    return folder / "videos" / f"{scene.scene_id}.mp4"


def _write_scene(folder: Path, scene: Scene, size: int) -> None:
    from eaglenet.video.decoding import write_video

    path = _video_path(folder, scene)
    # Written atomically, because the next call keeps existing files.
    with atomic_write(path) as partial:
        write_video(partial, render(scene, size), FRAMES_PER_SECOND)


def _write_captions(folder: Path, split: str, scenes: list[Scene]) -> None:
    """Replace the lines of this split in the captions file."""
    path = folder / CAPTIONS_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = [line for line in lines if json.loads(line)["split"] != split]
    for scene in scenes:
        row = {"video": f"videos/{scene.scene_id}.mp4", "captions": scene.captions, "split": split}
        rows.append(json.dumps(row))
    write_text(path, "\n".join(rows) + "\n")


def _store_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of the world in a folder; raise if it contains another one."""
    path = folder / WORLD_FILE
    if path.exists():
        current = read_json(path)
        if current != settings:
            raise DatasetError(
                f"{folder} contains a demo world with {current}, not {settings}: "
                "choose another folder or delete this one"
            )
    write_json(path, settings, indent=None)


def open_demo(data: DataChoice, split: str, context: OpenContext) -> Source:
    """Open a split, rendered in memory."""
    world = demo_split(split, **check_options("demo", demo_split, data.options))
    clips = render_clips(world, data.frames)
    tokens = context.reader.tokenize(world.texts, data.max_words)
    return clip_source(world, tokens, lambda rows: clips[rows])


add_source(
    SourceSpec(
        "demo", "The demo world, in memory", open=open_demo, splits=SPLITS, needs_folder=False
    )
)
DATASETS.add(
    "demo",
    DatasetSpec(
        name="demo",
        title="The demo world: drawn shapes, captions about the order of events",
        load=load,
        splits=SPLITS,
    ),
)


# Features by five experts, each of which encodes only some of the facts of a clip.

WIDTHS = {"scene": 12, "colour": 16, "shape": 20, "motion": 18, "sound": 10}
TOKENS = {"scene": 6, "colour": 8, "shape": 4, "motion": 2, "sound": 3}
WORDS = {"glove": 24, "gpt": 32}
FRAMES_EXPERT = "scene"
NOISE = 0.3
MODEL = "the demo world"


def write_experts(
    folder: Path | str,
    split: str = "train",
    *,
    count: int = 600,
    seed: int = 0,
    missing: float = 0.3,
) -> DemoSplit:
    """Write ``count`` clips of a split of the demo world as a folder of experts.

    - ``scene``: initial positions of all shapes, one token per sixth of the clip; never missing.
    - ``colour``: colours of visible shapes, one token per eighth.
    - ``shape``: shapes and sizes, one token per quarter.
    - ``motion``: kinds of motion, one token per half.
    - ``sound``: a tone per kind of motion, one token per third.

    No single expert has all facts of a caption. Each of the last four is missing for a video with
    probability ``missing`` (``sound`` with twice that). Token features of texts are fixed random
    vectors of two kinds, so that teachers can read other features than their student.
    """
    if not 0 <= missing <= 0.5:
        raise UsageError(f"missing is {missing}; expected a fraction from 0 to 0.5")
    records = demo_split(split, **{split: count}, seed=seed)
    generator = np.random.default_rng([seed, count, len(split)])
    experts = {name: _encode_scenes(name, records.scenes, missing, generator) for name in WIDTHS}
    captions = [text.split() for text in records.texts]
    words = {name: _encode_words(name, captions) for name in WORDS}
    values, mask = words["glove"]
    text_features = (values * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
    scene = experts.pop(FRAMES_EXPERT)
    # 0 is padding, 1 and 2 begin and end a text. The vocabulary is the same for all splits.
    ids = {word: 3 + number for number, word in enumerate(sorted(vocabulary()))}
    save_feature_folder(
        folder,
        TextFeatures(text_features),
        VideoFeatures(scene.values, scene.mask),
        video_of_text=records.video_of_text,
        video_ids=records.video_ids,
        captions=records.texts,
        frame_spec=FrameSpec(num_frames=TOKENS[FRAMES_EXPERT]),
        model=MODEL,
        dataset="demo",
        split=split,
        protocol=f"demo world seen by {len(WIDTHS)} experts",
    )
    if scene.seconds is None:
        raise AssertionError("all experts of the demo world have times")
    add_experts(
        folder,
        experts,
        models=dict.fromkeys((*WIDTHS, *WORDS), MODEL),
        frames=FRAMES_EXPERT,
        frames_model=MODEL,
        frame_seconds=scene.seconds[scene.mask],
        words=words,
        token_ids=[[1, *(ids[word] for word in caption), 2] for caption in captions],
        graphs=role_graphs(captions, mask.shape[1]),
        graph_words="glove",
    )
    return records


def _encode_scenes(
    name: str, scenes: Sequence[Scene], missing: float, generator: np.random.Generator
) -> Expert:
    """Make the tokens of an expert: the sum of the vectors of its facts, with noise."""
    tokens, width = TOKENS[name], WIDTHS[name]
    values = np.zeros((len(scenes), tokens, width), np.float32)
    for number, scene in enumerate(scenes):
        for token in range(tokens):
            values[number, token] = _token(name, scene, (token + 0.5) / tokens)
    values += NOISE * generator.normal(size=values.shape).astype(np.float32)
    probability = {FRAMES_EXPERT: 0.0, "sound": 2 * missing}.get(name, missing)
    is_present = torch.from_numpy(generator.random(len(scenes)) >= probability)
    mask = is_present[:, None].expand(-1, tokens).contiguous()
    middles = (torch.arange(tokens) + 0.5) / tokens * NUM_FRAMES / FRAMES_PER_SECOND
    seconds = middles.expand(len(scenes), -1).masked_fill(~mask, -1.0)
    return Expert(torch.from_numpy(values) * mask[..., None], mask, seconds)


def _token(name: str, scene: Scene, moment: float) -> NDArray[np.float32]:
    total = np.zeros(WIDTHS[name], np.float32)
    for event, (start, end) in zip(scene.all_events, scene.spans(), strict=True):
        if start <= moment < end or name == "scene":
            for fact in _facts(name, event):
                total += _direction(fact, WIDTHS[name])
    return total


def _facts(name: str, event: Event) -> tuple[str, ...]:
    """Return the facts of an event that an expert encodes."""
    return {
        "scene": (f"at {event.path[0][0]:.1f} {event.path[0][1]:.1f}",),
        "colour": (event.colour,),
        "shape": (event.shape, f"size {event.size}"),
        "motion": (event.motion,),
        "sound": (f"tone {event.motion}",),
    }[name]


def _encode_words(name: str, captions: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    max_length = max(len(caption) for caption in captions)
    values = torch.zeros(len(captions), max_length, WORDS[name])
    mask = torch.zeros(len(captions), max_length, dtype=torch.bool)
    vectors = {
        word: torch.from_numpy(_direction(f"{name} {word}", WORDS[name]))
        for word in {word for caption in captions for word in caption}
    }
    for number, caption in enumerate(captions):
        values[number, : len(caption)] = torch.stack([vectors[word] for word in caption])
        mask[number, : len(caption)] = True
    return values, mask


@functools.cache
def _direction(fact: str, width: int) -> NDArray[np.float32]:
    """Return the random vector of a fact, the same on every machine."""
    seed = int.from_bytes(hashlib.sha256(fact.encode()).digest()[:8], "big")
    vector: NDArray[np.float32] = np.random.default_rng(seed).normal(size=width).astype(np.float32)
    return vector
