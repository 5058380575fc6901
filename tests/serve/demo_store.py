"""A small store of real videos: a few scenes of the demo world and a model of random weights."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from eaglenet.encoders.tokenizers import ClipTokenizer
from eaglenet.indexing.index import IndexOptions, index_videos
from eaglenet.research.data.demo.dataset import demo_tokenizer_folder, render_world
from eaglenet.search.engine import Engine
from small_model import save_small_model

SCENES = 11
HOSTILE_NAME = "<img src=x onerror=alert(1)>&\"'.mp4"


@dataclass(frozen=True)
class DemoStore:
    """Where things are; ``secret`` lies outside the indexed folder."""

    folder: Path
    videos: Path
    model: Path
    secret: Path

    def open(self) -> Engine:
        return Engine.open(self.folder)


def save_model(folder: Path) -> Path:
    """Random weights, and the words of the demo world."""
    tokenizer = ClipTokenizer.from_folder(demo_tokenizer_folder())
    return save_small_model(folder, tokenizer=tokenizer)


def make_demo_store(base: Path, world: Path) -> DemoStore:
    """A store under ``base`` of copies of the scenes in ``world``, which are rendered only once."""
    split = render_world(world, "test", SCENES, workers=2)
    videos = base / "videos"
    videos.mkdir(parents=True)
    for number, record in enumerate(split.videos):
        assert record.path is not None
        folder = videos / ("beach" if number % 2 else "town")
        folder.mkdir(exist_ok=True)
        name = HOSTILE_NAME if number == 0 else f"scene {number:02}.mp4"
        shutil.copy2(record.path, folder / name)
        os.utime(folder / name, (1.7e9 + number * 86_400, 1.7e9 + number * 86_400))
    model = save_model(base / "model")
    tags = {
        str(path): ("odd",) if number % 2 else ("even",)
        for number, path in enumerate(sorted(videos.rglob("*.mp4")))
    }
    report = index_videos(
        [videos], base / "store", str(model), options=IndexOptions(workers=0), tags=tags
    )
    assert not report.problems
    secret = base / "secret.mp4"
    shutil.copy2(videos / "town" / "scene 02.mp4", secret)
    return DemoStore(base / "store", videos, model, secret)
