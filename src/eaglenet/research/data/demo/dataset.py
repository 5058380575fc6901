"""The demo world as a dataset: rendered to H.264 files, or straight into memory.

Clips and sentences come from :mod:`eaglenet.research.data.demo.world`, pixels from
:mod:`eaglenet.research.data.demo.rendering`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eaglenet.core.errors import ConfigError, DatasetError
from eaglenet.core.files import atomic_write, read_json, write_json, write_text
from eaglenet.core.platform import num_cores
from eaglenet.core.progress import Progress, report_progress
from eaglenet.core.types import Clips, FrameSpec
from eaglenet.research.data.demo.rendering import FRAME_SIZE, render, render_batch
from eaglenet.research.data.demo.world import (
    FRAMES_PER_SECOND,
    NUM_FRAMES,
    SPLITS,
    DemoWorld,
    Scene,
)
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
from eaglenet.research.data.sources import (
    DataChoice,
    Opening,
    Source,
    SourceSpec,
    add_source,
    clip_source,
)

logger = logging.getLogger(__name__)

COUNTS: Mapping[str, int] = {"train": 4000, "val": 400, "test": 1000}
DEMO = RetrievalProtocol(
    "demo world",
    "every caption is a query; the gallery is every clip of the split, and holds for each clip the "
    "one that differs only in time",
)
CAPTIONS_FILE = "captions.jsonl"
WORLD_FILE = "world.json"
RENDER_CHUNK = 64  # clips drawn at once


@dataclass(frozen=True)
class DemoSplit(Split):
    """A split of the demo world with its scenes."""

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
    """A split without files, for :func:`render_clips`; the counts are those of each split.

    ``unmentioned`` events of each clip are in no sentence.
    """
    check_split_name("demo", split, SPLITS)
    world = DemoWorld(seed, unmentioned=unmentioned)
    scenes = world.scenes(split, {"train": train, "val": val, "test": test}[split])
    return _demo_records(scenes, split, folder=None)


def render_clips(split: DemoSplit, spec: FrameSpec) -> Clips:
    """Render all clips of a split in memory, with the frames that ``spec`` samples."""
    if spec.sampling != "uniform":
        raise ConfigError(
            f"the demo world is drawn at the middles of equal segments: sampling={spec.sampling!r} "
            "needs files; use render_world, or sampling='uniform'"
        )
    parts = [
        render_batch(split.scenes[start : start + RENDER_CHUNK], spec.num_frames, spec.size)
        for start in range(0, len(split.scenes), RENDER_CHUNK)
    ]
    return Clips.concatenate(parts)


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
    """Write a split as H.264 files with a ``captions.jsonl``; returns its records.

    Several splits may share a folder. Existing files are kept, so an interrupted call can be
    repeated; a folder of another world or size is refused.
    """
    check_split_name("demo", split, SPLITS)
    folder = Path(folder)
    world = DemoWorld(seed, unmentioned=unmentioned)
    scenes = world.scenes(split, count if count is not None else COUNTS[split])
    (folder / "videos").mkdir(parents=True, exist_ok=True)
    settings = {"seed": seed, "size": size, "frames": NUM_FRAMES, "fps": FRAMES_PER_SECOND}
    _claim(folder, settings | ({"unmentioned": unmentioned} if unmentioned else {}))
    missing = [scene for scene in scenes if not _video_path(folder, scene).exists()]
    with ThreadPoolExecutor(workers or min(4, num_cores())) as pool:
        # Encoding runs outside Python's lock, so threads are enough.
        written = pool.map(lambda scene: _write_scene(folder, scene, size), missing)
        for there, _ in enumerate(written, len(scenes) - len(missing) + 1):
            report_progress(progress, "rendering clips", there, len(scenes))
    _write_captions(folder, split, scenes)
    logger.info("%s: %d clips written, %d were there", folder, len(missing), len(scenes))
    return _demo_records(scenes, split, folder)


def load(
    root: Path | str,
    split: str = "test",
    *,
    count: int | None = None,
    seed: int = 0,
    unmentioned: int = 0,
) -> Split:
    """Load the demo world under ``root``; missing clips are rendered first."""
    return render_world(root, split, count, seed=seed, unmentioned=unmentioned)


def demo_tokenizer_folder() -> Path:
    """Folder of the tokenizer of the demo world; it reads other words as bytes.

    It is part of the model ``demo``, which was trained with it.
    """
    return Path(__file__).parents[3] / "models" / "demo"


def _demo_records(scenes: list[Scene], split: str, folder: Path | None) -> DemoSplit:
    videos = [
        VideoRecord(scene.scene_id, scene.captions, _video_path(folder, scene) if folder else None)
        for scene in scenes
    ]
    plain = make_split("demo", split, DEMO, videos)
    return DemoSplit(plain.dataset, split, plain.protocol, plain.videos, (), tuple(scenes))


def _video_path(folder: Path, scene: Scene) -> Path:
    return folder / "videos" / f"{scene.scene_id}.mp4"


def _write_scene(folder: Path, scene: Scene, size: int) -> None:
    from eaglenet.video.decoding import write_video

    path = _video_path(folder, scene)
    # A half-written file must never carry the final name: the next call would keep it.
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


def _claim(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / WORLD_FILE
    if path.exists():
        current = read_json(path)
        if current != settings:
            raise DatasetError(
                f"{folder} holds a demo world with {current}, not {settings}: "
                "choose another folder or delete this one"
            )
    write_json(path, settings, indent=None)


def open_demo(data: DataChoice, split: str, opening: Opening) -> Source:
    """A split rendered in memory, without files."""
    world = demo_split(split, **check_options("demo", demo_split, data.options))
    clips = render_clips(world, data.frames)
    tokens = opening.reader.tokenize(world.texts, data.max_words)
    return clip_source(world, tokens, lambda rows: clips[rows])


add_source(SourceSpec("demo", "The demo world, in memory", open=open_demo, needs_folder=False))
DATASETS.add(
    "demo",
    DatasetSpec(
        name="demo",
        title="The demo world: drawn shapes, sentences about what happens before what",
        load=load,
        splits=SPLITS,
        options={
            "count": "number of clips; twins that differ only in time stay together",
            "seed": "another seed is another world",
            "unmentioned": "events of each clip that no sentence names",
        },
    ),
)
