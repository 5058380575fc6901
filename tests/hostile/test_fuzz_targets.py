"""Every fuzz target with random damage to sound inputs; Atheris runs the same functions."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import random
import struct
import sys
import time
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mutations import mutate_bytes
from test_videos import small_video

FUZZ = Path(__file__).parents[2] / "fuzz"
CASES = int(os.environ.get("FUZZ_CASES", "40"))
MAX_SECONDS = 20.0
"""Seconds per input; a slow machine needs some for a video."""


def load_targets() -> dict[str, Callable[[bytes], None]]:
    spec = importlib.util.spec_from_file_location("targets", FUZZ / "targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["targets"] = module
    spec.loader.exec_module(module)
    targets: dict[str, Callable[[bytes], None]] = module.TARGETS
    return targets


TARGETS = load_targets()


@cache
def sound_video(folder: Path) -> bytes:
    return small_video(folder / "a.mkv", 8).read_bytes()


def image_bytes() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.effect_noise((24, 16), 50).save(buffer, "TIFF")
    return buffer.getvalue()


def reply_bytes() -> bytes:
    from eaglenet.indexing.files import CandidateFile
    from eaglenet.indexing.inspection import Inspection
    from eaglenet.video.messages import layout_of, pack

    value = Inspection(CandidateFile("/a", 1, 2), "a" * 32, 3.0, windows=((0.0, 1.0),))
    return bytes(pack(layout_of(Inspection), value)[0])


def array_bytes() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(12.0).reshape(3, 4))
    return buffer.getvalue()


def zip_bytes() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a/data.pkl", b"x" * 50)
    return buffer.getvalue()


def sound_input(name: str, folder: Path) -> bytes:
    """A valid input of a target."""
    if name in ("video", "audio", "embedded_subtitles"):
        return sound_video(folder)
    inputs: dict[str, Callable[[], bytes]] = {
        "image": image_bytes,
        "subtitles": lambda: b"\0" + b"1\n00:00:01,000 --> 00:00:02,000\n<i>Hi {\\an8}</i>\n\n" * 3,
        "ignore_patterns": lambda: b"*.mp4\n!keep/**/a[0-9].mp4\n/deep/\n",
        "worker_reply": lambda: b"\1" + reply_bytes()[16:],
        "worker_stream": lambda: struct.pack("<4sIQQ", b"eng1", 1, 3, 9) + bytes(12),
        "json_text": lambda: b'{"a": [1, 2.5e3, "x", null, {"b": []}]}',
        "array_file": array_bytes,
        "compressed": lambda: gzip.compress(b"text " * 100),
        "archive": zip_bytes,
        "openai_weights": zip_bytes,
        "tags": lambda: b"path,tags\na.mp4,x;y\n",
        "file_list": lambda: b"# files\n/a/b.mp4\ns3://bucket/c.mp4\n",
        "merges": lambda: b"#version: 0.2\na b\nab c</w>\n",
        "hub_config": lambda: json.dumps(
            {
                "model_type": "clip",
                "projection_dim": 8,
                "text_config": {"hidden_size": 8, "num_hidden_layers": 1},
                "vision_config": {"hidden_size": 8, "image_size": 16, "patch_size": 8},
            }
        ).encode(),
        "hub_headers": lambda: b'ETag:"' + b"a" * 40 + b'"\nX-Repo-Commit:' + b"b" * 40,
        "shard_rows": lambda: b'{"rows": "AAAAAA==", "scores": "AAAAAA=="}',
    }
    return inputs[name]()


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    run, sound = TARGETS[name], sound_input(name, tmp_path)
    run(b"")
    run(sound)
    slow = name in ("video", "audio", "embedded_subtitles", "openai_weights")
    for number in range(CASES // 4 if slow else CASES):
        chance = random.Random(f"{name} {number}")
        content = mutate_bytes(sound, chance) if number % 5 else chance.randbytes(200)
        began = time.monotonic()
        try:
            run(content)
        except Exception as error:
            pytest.fail(f"{name} {number}: {error!r} from {content[:200]!r}")
        assert time.monotonic() - began < MAX_SECONDS


def test_every_target_can_be_built() -> None:
    """The script builds all targets by their names, and seeds only known ones."""
    script = (FUZZ / "build.sh").read_text()
    seeded = {line.split()[1] for line in script.splitlines() if line.startswith("seeds ")}
    assert seeded <= set(TARGETS)
    compile((FUZZ / "fuzz_target.py").read_text(), "fuzz_target.py", "exec")
