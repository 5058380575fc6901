"""A decoder of uploads that hangs. Without torch, which takes seconds to import in its process."""

from __future__ import annotations

import time

from eaglenet.video.decoding import DecodedVideo, QueryRequest, decode_query
from eaglenet.video.frame_images import FramesRequest
from eaglenet.video.input_file import open_input_file
from eaglenet.video.pixels import Pixels


def decode_slowly(request: QueryRequest) -> DecodedVideo:
    """Take for ever with a file that says so."""
    with open_input_file(request.path) as file:
        if file.read(4) == b"film":
            time.sleep(1000)
    return decode_query(request)


def read_slowly(request: FramesRequest) -> list[Pixels]:
    """Take for ever to read the frames of a file."""
    time.sleep(1000)
    return []
