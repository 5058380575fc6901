"""Processes that only look at files and decode them start without what encoding needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from small_videos import colour_video

CODE = """
import os, sys
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.indexing.decoding import decode_clips, split_request
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import inspect
from eaglenet.core.frame_spec import Splitting
from eaglenet.video.pool import map_ahead
from eaglenet.video.messages import layout_of, pack, result_type

for path in sys.argv[1:]:
    status = os.stat(path)
    file = CandidateFile(path, status.st_size, status.st_mtime_ns)
    found = inspect(file, Splitting(2.0, 0.5), frozenset())
    assert not found.problem, found.problem
    windows = dict(enumerate(found.windows))
    for request in split_request(found.content, path, windows, found.version, found.duration):
        decoded = decode_clips(request, FrameSpec(3, 32))
        pack(layout_of(result_type(decode_clips)), decoded)
        print(*(clip.pixels.shape for clip in decoded.clips))
heavy = ("torch", "lancedb", "pyarrow", "onnxruntime", "jaxtyping", "transformers")
print([name for name in heavy if name in sys.modules])
"""


def test_inspecting_and_decoding_do_not_import_torch(tmp_path: Path) -> None:
    from PIL import Image

    video = colour_video(tmp_path / "a.mp4", ["red", "green"])
    picture = tmp_path / "b.png"
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save(picture)
    ended = subprocess.run(
        [sys.executable, "-c", CODE, str(video), str(picture)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "(3, 3, 32, 32)" in ended.stdout
    assert ended.stdout.splitlines()[-1] == "[]"
