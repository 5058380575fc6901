"""Functions that workers run in tests. Does not import torch, which takes two seconds."""

from __future__ import annotations

import os
import time
from pathlib import Path

from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.decoding import DecodedVideo, DecodeRequest, decode_request
from eaglenet.video.input_file import SharedFile, file_status, share_file

SPEC = FrameSpec(num_frames=5, size=64)


def die_on_poison(request: DecodeRequest) -> DecodedVideo:
    """End the process like a crash in a codec."""
    if "poison" in request.video_id:
        os._exit(11)
    return decode_request(request, SPEC)


def wait_for_a_kill(request: DecodeRequest) -> DecodedVideo:
    """Hang while the modification time of the file is in 1970, else decode the file."""
    if request.video_id == "killed" and file_status(request.path).st_mtime_ns < 10**10:
        time.sleep(60)
    return decode_request(request, SPEC)


def share_request(request: DecodeRequest) -> SharedFile:
    return share_file(request.path)


def end_at_once(request: DecodeRequest) -> DecodedVideo:
    raise SystemExit(3)


def wrong_type(request: int) -> int:
    """Return a value that does not have the annotated type, or one that has."""
    return "text" if request == 0 else request  # type: ignore[return-value]


def wait(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def compute(path: Path) -> float:
    """Use 0.5 s of processor time."""
    start = time.process_time()
    while time.process_time() < start + 0.5:
        pass
    return 0.5
