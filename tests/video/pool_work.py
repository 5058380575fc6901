"""Functions that workers run in tests. Without torch, which takes two seconds to import."""

from __future__ import annotations

import os
import time
from pathlib import Path

from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.decoding import DecodedVideo, DecodeRequest, decode_request

SPEC = FrameSpec(num_frames=5, size=64)


def die_on_poison(request: DecodeRequest) -> DecodedVideo:
    """End the process like a crash in a codec."""
    if "poison" in request.video_id:
        os._exit(11)
    return decode_request(request, SPEC)


def wait_for_a_kill(request: DecodeRequest) -> DecodedVideo:
    """The first attempt leaves its process number and hangs; the second decodes."""
    note = Path(request.path).with_suffix(".pid")
    if request.video_id == "killed" and not note.exists():
        note.write_text(str(os.getpid()))
        time.sleep(60)
    return decode_request(request, SPEC)


def end_at_once(request: DecodeRequest) -> DecodedVideo:
    raise SystemExit(3)


def unsendable(request: int) -> object:
    """A result that cannot leave its process, and one that can."""
    return (lambda: None) if request == 0 else request
