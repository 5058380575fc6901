"""Frames and a thumbnail of requested clips, decoded here or ahead in worker processes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from eaglenet.errors import VideoDecodeError
from eaglenet.search.indexing.clips import Window
from eaglenet.search.store.tables import ClipKey
from eaglenet.types import FrameSpec
from eaglenet.video.decoding import DecodedVideo, decode_windows, thumbnail
from eaglenet.video.pictures import to_jpeg
from eaglenet.video.pool import DecodeRequest, Skipped, decode_many

THUMBNAIL_SIZE = 160
"""Shorter side in pixels. Frames of at least this size are the thumbnail themselves."""
CLIPS_AT_ONCE = 8
"""Neighbouring clips that a worker decodes in one pass: 14 MB of pixels for 12 frames of 224."""
PREFETCH = 4


@dataclass(frozen=True)
class ClipRequest:
    """Neighbouring clips wanted of one file."""

    content: str
    path: str
    numbers: tuple[int, ...]
    windows: tuple[Window, ...]


@dataclass(frozen=True)
class ClipFrames:
    """A decoded clip."""

    key: ClipKey
    path: str
    window: Window
    frames: Tensor
    mask: Tensor
    seconds: Tensor
    thumbnail: bytes


@dataclass(frozen=True)
class ClipFailure:
    """A clip that gave no frames."""

    key: ClipKey
    reason: str


@dataclass(frozen=True)
class Damage:
    """Frames of a file did not decode, and others up to ``seconds`` away stand in for them."""

    content: str
    seconds: float


def split_request(content: str, path: str, windows: dict[int, Window]) -> Iterator[ClipRequest]:
    """Requests for the clips of one file, in pieces that travel well."""
    numbers = sorted(windows)
    for start in range(0, len(numbers), CLIPS_AT_ONCE):
        part = tuple(numbers[start : start + CLIPS_AT_ONCE])
        yield ClipRequest(content, path, part, tuple(windows[number] for number in part))


def decode_ahead(
    requests: Iterable[ClipRequest], spec: FrameSpec, workers: int
) -> Iterator[ClipFrames | ClipFailure | Damage]:
    """Every requested clip once, as frames or as a failure, in order; damage before its clips.

    With workers the requests are taken in another thread, a few ahead of the results.
    """
    items = (DecodeRequest(_to_text(request), request.path) for request in requests)
    results = decode_many(items, spec, workers=workers, prefetch=PREFETCH, decode_one=decode_clips)
    for result in results:
        request = _from_text(result.video_id)
        if isinstance(result, Skipped):
            for number in request.numbers:
                yield ClipFailure((request.content, number), result.reason)
            continue
        if result.video.largest_error:
            yield Damage(request.content, result.video.largest_error)
        yield from _separate(request, result.video, spec.num_frames)


def decode_clips(item: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """The clips of a request end to end; one that could not be decoded has an empty mask."""
    request = _from_text(item.video_id)
    place = {window: number for number, window in enumerate(request.windows)}
    count = len(place) * spec.num_frames
    frames = torch.zeros(count, 3, spec.size, spec.size, dtype=torch.uint8)
    mask = torch.zeros(count, dtype=torch.bool)
    seconds = torch.zeros(count)
    error = 0.0
    videos = decode_windows(item.path, spec, list(place), threads=1, skip_damaged=True)
    for video in videos:
        if video.window is not None:
            start = place[video.window] * spec.num_frames
            span = slice(start, start + spec.num_frames)
            frames[span], mask[span], seconds[span] = video.frames, video.mask, video.seconds
            # The nearest keyframes are some way off in whole files too.
            error = max(error, 0.0 if spec.fast else video.largest_error)
    return DecodedVideo(frames, mask, seconds, error)


def _separate(
    request: ClipRequest, video: DecodedVideo, num_frames: int
) -> Iterator[ClipFrames | ClipFailure]:
    for place, number in enumerate(request.numbers):
        span = slice(place * num_frames, (place + 1) * num_frames)
        mask, seconds, frames = video.mask[span], video.seconds[span], video.frames[span]
        if not bool(mask.any()):
            reason = "too few of its frames could be decoded"
            yield ClipFailure((request.content, number), reason)
            continue
        yield ClipFrames(
            key=(request.content, number),
            path=request.path,
            window=request.windows[place],
            frames=frames,
            mask=mask,
            seconds=seconds,
            thumbnail=make_thumbnail(request.path, frames, seconds, mask),
        )


def make_thumbnail(path: str, frames: Tensor, seconds: Tensor, mask: Tensor) -> bytes:
    """JPEG of the middle real frame of a clip."""
    real = mask.nonzero()[:, 0]
    middle = int(real[len(real) // 2])
    if frames.shape[-1] < THUMBNAIL_SIZE:
        try:
            return thumbnail(path, float(seconds[middle]), THUMBNAIL_SIZE)
        except VideoDecodeError:
            pass  # A small picture is better than none.
    return to_jpeg(frames[middle].numpy())


def _to_text(request: ClipRequest) -> str:
    """Requests travel to workers under a name; the name says it all."""
    return json.dumps([request.content, request.path, request.numbers, request.windows])


def _from_text(text: str) -> ClipRequest:
    content, path, numbers, windows = json.loads(text)
    pairs = tuple((float(start), float(end)) for start, end in windows)
    return ClipRequest(content, path, tuple(numbers), pairs)
