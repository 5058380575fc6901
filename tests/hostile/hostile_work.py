"""What workers are given to do: by its name, and without torch, which takes long to import."""

from __future__ import annotations

import importlib
import sys
import time
from multiprocessing.connection import Connection

from eaglenet.core.frame_spec import FrameSpec, Splitting
from eaglenet.indexing.decoding import ClipFrames, decode_clips, split_request
from eaglenet.indexing.files import CandidateFile
from eaglenet.indexing.inspection import inspect
from eaglenet.video.input_file import file_status

SPEC = FrameSpec(num_frames=3, size=16)
SPLITTING = Splitting(3.0, 1.0)


def never_ends(request: int) -> int:
    while request == 1:
        time.sleep(0.05)
    return request


def takes_memory(request: int) -> int:
    if request == 1:
        return len(bytearray(1_500_000_000))
    return request


def look_and_decode(path: str) -> tuple[str, int]:
    """Everything that an index run does with a file: the problem it met, and clips."""
    status = file_status(path)
    found = inspect(CandidateFile(path, status.st_size, status.st_mtime_ns), SPLITTING, frozenset())
    windows = dict(enumerate(found.windows))
    clips = 0
    for request in split_request(found.content, path, windows, found.version, found.duration):
        decoded = decode_clips(request, SPEC)
        clips += sum(isinstance(one, ClipFrames) for one in decoded.clips)
    return found.problem, clips


def sleep_long(request: int) -> None:
    time.sleep(600)


def list_modules(connection: Connection) -> None:
    """Import what decoders, encoders and streams import, and send the names of all modules."""
    parts = ("indexing.decoding", "indexing.inspection", "video.streaming")
    # The last two with the first file.
    for name in (*(f"eaglenet.{part}" for part in parts), "av", "resource"):
        importlib.import_module(name)
    connection.send(sorted({name.partition(".")[0] for name in sys.modules}))
