"""A sound input of every fuzz target, to begin from.

python fuzz/seeds.py subtitles corpus/subtitles
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import sys
import zipfile
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np


@cache
def sound_video() -> bytes:
    """Eight frames with audio and one line of subtitles."""
    buffer, chance = io.BytesIO(), np.random.default_rng(0)
    with av.open(buffer, "w", format="matroska") as container:
        video = container.add_stream("libx264", rate=10)
        video.width, video.height, video.pix_fmt = 32, 24, "yuv420p"
        audio = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        subtitles = container.add_mux_stream("subrip")
        subtitles.time_base = Fraction(1, 1000)
        for number in range(8):
            pixels = chance.integers(0, 255, (24, 32, 3), dtype=np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            container.mux(video.encode(frame))
        samples = chance.integers(-999, 999, (1, 800), dtype=np.int16)
        sound = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        sound.sample_rate, sound.pts, sound.time_base = 8000, 0, Fraction(1, 8000)
        container.mux(audio.encode(sound))
        packet = av.Packet(b"<i>Hi</i>")
        packet.stream, packet.time_base = subtitles, Fraction(1, 1000)
        packet.pts = packet.dts = 100
        packet.duration = 500
        container.mux(packet)
        for stream in (video, audio):
            container.mux(stream.encode(None))
    return buffer.getvalue()


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


def shard_bytes() -> bytes:
    """One list that both readers of shards take."""
    arrays = {"rows": "<2q", "cosines": "<2f", "distances": "<2H", "scores": "<2i"}
    arrays |= {"prefix_distances": "<2H", "prefix_counts": "<2q"}
    packed = {
        name: base64.b64encode(struct.pack(form, 0, 1)).decode() for name, form in arrays.items()
    }
    return json.dumps({"lists": [packed]}).encode()


def sound_input(name: str) -> bytes:
    """A valid input of a target."""
    if name in ("video", "audio", "embedded_subtitles"):
        return sound_video()
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
        "shard_rows": shard_bytes,
    }
    return inputs[name]()


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seed").write_bytes(sound_input(name))


if __name__ == "__main__":
    main()
