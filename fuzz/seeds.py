"""A sound input of every fuzz target, to begin from.

python fuzz/seeds.py subtitles corpus/subtitles
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from eaglenet.video.decoding import write_video


@cache
def sound_video(folder: Path) -> bytes:
    path = folder / "seed.mkv"
    frames = np.random.default_rng(0).integers(0, 255, (8, 24, 32, 3), dtype=np.uint8)
    write_video(path, frames, 10)
    return path.read_bytes()


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


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    content = sound_input(name, folder)
    (folder / "seed.mkv").unlink(missing_ok=True)
    (folder / "seed").write_bytes(content)


if __name__ == "__main__":
    main()
