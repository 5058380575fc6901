"""Decode files to search with, and frames to show, in confined processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.decoding import DecodedVideo, QueryRequest, check_frames, decode_query
from eaglenet.video.frame_images import FramesRequest, check_frame_images, read_frame_images
from eaglenet.video.input_file import share_file
from eaglenet.video.inputs import FrameBatch
from eaglenet.video.limits import Limits
from eaglenet.video.pixels import Pixels
from eaglenet.video.sampling import Window
from eaglenet.video.worker import IsolatedProcess


class QueryDecoder:
    """Decodes one file after the other. Processes start on first use and end with ``close``."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self._clips = IsolatedProcess(decode_query, limits.memory, limits.seconds, _check)
        self._frames = IsolatedProcess(
            read_frame_images, limits.memory, limits.seconds, check_frame_images
        )

    def start(self) -> None:
        """Start the process for queries, without waiting until it is ready."""
        self._clips.start()

    def close(self) -> None:
        self._clips.close()
        self._frames.close()

    def decode_image(self, path: str | Path, spec: FrameSpec) -> FrameBatch:
        """Decode an image, whatever its name, to a clip that repeats it in every frame."""
        try:
            return _batch(_run(self._clips, QueryRequest(str(path), spec, is_image=True)))
        except UsageError as error:
            if str(path) in str(error):
                raise
            raise UsageError(f"{path}: {error}") from None

    def decode_video(
        self, path: str | Path, spec: FrameSpec, window: Window | None = None
    ) -> FrameBatch:
        """Decode a video, or a window of it, to one clip; an image is a video of one frame."""
        request = QueryRequest(str(path), spec, is_image=False, window=window)
        try:
            return _batch(_run(self._clips, request))
        except UsageError as error:
            raise VideoDecodeError(path, str(error)) from None

    def read_frame(self, path: str | Path, seconds: float, side: int) -> Pixels:
        """Decode the frame at a time, upright, with this shorter side."""
        request = FramesRequest(str(path), (seconds,), side, is_short_side=True)
        try:
            (frame,) = _run(self._frames, request)
        except UsageError as error:
            raise VideoDecodeError(path, str(error)) from None
        pixels: Pixels = frame
        return pixels


def _run(process: IsolatedProcess, request: Any) -> Any:
    file = share_file(request.path)
    try:
        return process(request, file)
    finally:
        file.close()


def _batch(video: DecodedVideo) -> FrameBatch:
    times = video.times[None].astype(np.float32, copy=False)
    return FrameBatch(video.pixels[None], video.is_real[None], times)


def _check(request: QueryRequest, video: DecodedVideo) -> None:
    check_frames(video, request.spec)
