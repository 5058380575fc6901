"""Decoding on an NVIDIA GPU, with FFmpeg's CUDA decoders.

    prepare()                    # once per process
    with open_video(path): ...   # frames stay in GPU memory

Only sampled frames are copied to the CPU, where :mod:`eaglenet.video.pixels` converts them like
those of a software decoder. Streams that the GPU cannot decode are decoded in software.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from eaglenet.core.errors import UsageError
from eaglenet.video.containers import pyav

PRIMARY_CONTEXT = 1
"""FFmpeg's AV_CUDA_USE_PRIMARY_CONTEXT: all files of a process share one CUDA context, which takes
a few hundred milliseconds to create."""
SIDE, FRAMES = 256, 4
"""Side in pixels of the video that :func:`prepare` decodes."""

_accelerator: Any = None
_sample: Any = None
"""An open container, which keeps the CUDA context alive."""


def is_built_in() -> bool:
    """Return whether PyAV's FFmpeg has CUDA decoders, with or without a GPU."""
    return "cuda" in pyav().codec.hwaccel.hwdevices_available()


def prepare() -> None:
    """Let this process decode on the GPU; raise ``UsageError`` if it cannot.

    Decodes a sample, so that libraries and devices are open before the process is confined.
    """
    global _accelerator, _sample
    if not is_built_in():
        raise UsageError("this build of PyAV has no CUDA decoders; decode on the cpu")
    av = pyav()
    accelerator = av.codec.hwaccel.HWAccel("cuda", flags=PRIMARY_CONTEXT, is_hw_owned=True)
    try:
        sample = av.open(_make_sample(), hwaccel=accelerator)
        names = {frame.format.name for frame in sample.decode(video=0)}
    except (av.FFmpegError, RuntimeError, NotImplementedError) as error:
        raise UsageError(f"the GPU does not decode video ({error}); decode on the cpu") from error
    if names != {"cuda"}:
        raise UsageError("the GPU does not decode H.264; decode on the cpu")
    _accelerator, _sample = accelerator, sample


def accelerator() -> Any:
    """Return PyAV's settings for decoding on the GPU; None if this process decodes on the CPU."""
    return _accelerator


def is_used() -> bool:
    """Return whether newly opened files are decoded on the GPU."""
    return _accelerator is not None


@contextmanager
def software() -> Iterator[None]:
    """Decode files that are opened inside the block on the CPU."""
    global _accelerator
    previous, _accelerator = _accelerator, None
    try:
        yield
    finally:
        _accelerator = previous


def _make_sample() -> io.BytesIO:
    """Return a short H.264 video in memory."""
    av = pyav()
    content = io.BytesIO()
    with av.open(content, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        frame = np.zeros((SIDE, SIDE, 3), np.uint8)
        for _ in range(FRAMES):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    content.seek(0)
    return content
