"""Decode files to search with, and frames to show, in confined processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.frame_spec import FrameSpec
from eaglenet.video.decoding import DecodedVideo, QueryRequest, check_frames, decode_query
from eaglenet.video.frame_images import FramesRequest, check_frame_images, read_frame_images
from eaglenet.video.input_file import SharedFile, share_file
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
            with _open_file(path) as file:
                return _batch(self._clips(QueryRequest(file.path, spec, is_image=True), file))
        except UsageError as error:
            if str(path) in str(error):
                raise
            raise UsageError(f"{path}: {error}") from None

    def decode_video(
        self, video: str | Path | SharedFile, spec: FrameSpec, window: Window | None = None
    ) -> FrameBatch:
        """Decode a video, or a window of it, to one clip; an image is a video of one frame."""
        with _open_file(video) as file:
            request = QueryRequest(file.path, spec, is_image=False, window=window)
            try:
                return _batch(self._clips(request, file))
            except UsageError as error:
                raise VideoDecodeError(file.path, str(error)) from None

    def read_frame(self, video: str | Path | SharedFile, seconds: float, side: int) -> Pixels:
        """Decode the frame at a time, upright, with this shorter side."""
        with _open_file(video) as file:
            request = FramesRequest(file.path, (seconds,), side, is_short_side=True)
            try:
                (frame,) = self._frames(request, file)
            except UsageError as error:
                raise VideoDecodeError(file.path, str(error)) from None
        pixels: Pixels = frame
        return pixels


@contextlib.contextmanager
def _open_file(file: str | Path | SharedFile) -> Iterator[SharedFile]:
    """Yield an open file; one that was opened here is closed."""
    if isinstance(file, SharedFile):
        yield file
        return
    with contextlib.closing(share_file(file)) as own_file:
        yield own_file


def _batch(video: DecodedVideo) -> FrameBatch:
    times = video.times[None].astype(np.float32, copy=False)
    return FrameBatch(video.pixels[None], video.is_real[None], times)


def _check(request: QueryRequest, video: DecodedVideo) -> None:
    check_frames(video, request.spec)
