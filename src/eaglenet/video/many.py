"""Many videos decoded ahead in worker processes, in order.

for outcome in decode_many([DecodeRequest("a", "a.mp4")], spec, workers=2):
    if isinstance(outcome, Done): ...   # outcome.request.video_id, outcome.result.frames
    else: ...                           # Failed: outcome.request, outcome.reason
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from eaglenet.frame_spec import FrameSpec
from eaglenet.video.decoding import DecodedVideo, Window, decode
from eaglenet.video.pool import Done, Failed, map_ahead

logger = logging.getLogger(__name__)


@contextmanager
def silent() -> Iterator[None]:
    """Say nothing of skipped videos: for callers whose own report counts them."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


class DecodeRequest(NamedTuple):
    """What to decode; a plain tuple will do."""

    video_id: str
    path: Path | str
    window: Window | None = None


Decoded = Done[DecodeRequest, DecodedVideo]
Skipped = Failed[DecodeRequest]


def decode_request(request: DecodeRequest, spec: FrameSpec) -> DecodedVideo:
    """One thread each: several would only fight over the cores with the other workers."""
    return decode(request.path, spec, window=request.window, threads=1)


def decode_many(
    items: Iterable[DecodeRequest | tuple[str, Path | str, Window | None]],
    spec: FrameSpec,
    *,
    workers: int = 0,
    prefetch: int = 8,
) -> Iterator[Decoded | Skipped]:
    """Decode ``items`` and give the outcomes in their order; see :func:`map_ahead`.

    What was skipped is logged at the end, once, with every file and its reason.
    """
    requests = (DecodeRequest(*item) for item in items)
    work = partial(decode_request, spec=spec)
    skipped: list[Skipped] = []
    try:
        for outcome in map_ahead(work, requests, workers=workers, prefetch=prefetch):
            if isinstance(outcome, Failed):
                skipped.append(outcome)
            yield outcome
    finally:
        if skipped:
            lines = "".join(f"\n  {one.request.path}: {one.reason}" for one in skipped)
            logger.warning("%d of the videos were skipped:%s", len(skipped), lines)
