"""Number of files of this package that a query, a video, a batch and a request pass through.

    python benchmarks/walks.py

A file counts if one of its functions is called in any thread of this process; an import does not
count. Videos are decoded in this process (``workers=0``), so that decoders count too. They are
indexed in fp32 on the CPU, because ``auto`` encodes with torch where it is faster (a GPU, or a CPU
with bf16), which passes the files of the model in torch as well.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import eaglenet

PACKAGE = str(Path(eaglenet.__file__).parent)
OPTIMIZED = 1
"""CO_OPTIMIZED: the code of a function, not that of a module or a class."""

visited_codes: set[CodeType] | None = None


class FirstLossError(Exception):
    """Ends a training run after its first loss."""


def profile(frame: FrameType, event: str, argument: Any) -> None:
    if visited_codes is not None and event == "call" and frame.f_code.co_flags & OPTIMIZED:
        visited_codes.add(frame.f_code)


@contextmanager
def walk(name: str, counts: dict[str, int]) -> Iterator[None]:
    """Count the files that the block passes through."""
    global visited_codes
    visited_codes = set()
    yield
    codes, visited_codes = visited_codes, None
    files = {code.co_filename for code in codes}
    counts[name] = sum(file.startswith(PACKAGE) for file in files)


def run(arguments: list[str]) -> None:
    from eaglenet.cli.main import app

    app(arguments, standalone_mode=False)


def train_first_step(output: Path) -> None:
    from eaglenet.research.training import trainer

    def compute(*arguments: Any, **options: Any) -> Any:
        original(*arguments, **options)
        raise FirstLossError

    original: Callable[..., Any] = trainer.training_losses
    trainer.training_losses = compute
    settings = ("training.batch_size=8", "data.options.train=16", "data.options.val=4")
    changes = [part for setting in settings for part in ("--set", setting)]
    try:
        run(["train", "eaglenet", "--data", "demo", "--output", str(output), *changes])
    except FirstLossError:
        pass
    finally:
        trainer.training_losses = original


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    sys.setprofile(profile)
    threading.setprofile(profile)
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        videos, store = Path(folder) / "videos", str(Path(folder) / "store")
        from eaglenet.research.data.demo.dataset import render_world

        render_world(videos, "test", 3)
        with walk("videos, eaglenet index", counts):
            options = ["--workers", "0", "--device", "cpu", "--precision", "fp32"]
            run(["index", str(videos), "--store", store, *options])
        with walk("text, eaglenet search", counts):
            run(["search", "a red circle", "--store", store])
        engine = eaglenet.open(store)
        engine.search("a blue star")
        with walk("text, warm Engine.search", counts):
            engine.search("a red circle")
        from fastapi.testclient import TestClient

        from eaglenet.serve.app import create_app
        from eaglenet.serve.settings import Settings

        with TestClient(create_app(engine, Settings()), base_url="http://localhost") as client:
            client.get("/api/search", params={"q": "a blue star"})
            with walk("request, GET /api/search", counts):
                assert client.get("/api/search", params={"q": "a red star"}).status_code == 200
        with walk("batch, eaglenet train to the first loss", counts):
            train_first_step(Path(folder) / "run")
    print(json.dumps(counts, indent=2))


if __name__ == "__main__":
    main()
