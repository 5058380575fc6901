r"""Highlights: moments unlike what a store usually shows.

The unusualness of a clip is its distance from the clips that are nearest to it elsewhere:

.. math::
    u_i = 1 - \frac{1}{n} \sum_{j \in \mathrm{nearest}(i, n)} \cos(v_i, v_j)

v are coarse vectors, n is 10, and j runs over up to 2,048 clips, evenly spaced in the store,
without those right beside i in the same file. What happens often has near neighbours somewhere;
what happened once has none. Clips of one plain colour (black leader, a covered lens) are left out.
Every file first gives its most unusual moment, then its next, so that one odd file does not fill
the list.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.hits import Hit, Moment
from eaglenet.search.engine import Engine
from eaglenet.search.hits import HitList, make_hit
from eaglenet.search.options import Filters, SearchOptions, check_count
from eaglenet.search.reranking import spaced_indices
from eaglenet.search.retrieval import StoreView
from eaglenet.search.selection import ClipDetails
from eaglenet.store.records import Clip
from eaglenet.store.snapshot import Snapshot

NEIGHBOURS = 10
MAX_REFERENCES = 2048
MAX_CLIPS = 200_000
"""Clips that are compared; of more, evenly spaced ones."""
BESIDE = 4
"""Rows before and after a clip of the same file that overlap with it and are not compared."""
APART = 30.0
"""Least seconds between two highlights of one file."""
BLOCK = 4096
PLAIN = 6.0
"""Standard deviation of the brightness of a thumbnail, 0 to 255, up to which it shows nothing."""


def find_highlights(engine: Engine, k: int = 10, filters: Filters | None = None) -> HitList:
    """Return the k most unusual moments, the most unusual first; their score is the unusualness.

    ``filters`` choose the files that highlights may be in; they are compared with the whole store.
    """
    k = check_count(k)
    find = partial(_find, k=k, filters=filters or Filters())
    return HitList(engine.read(find), engine.thumbnail)


def _find(view: StoreView, k: int, filters: Filters) -> list[Hit]:
    snapshot = view.snapshot
    rows = snapshot.visible_rows()
    references = rows[spaced_indices(len(rows), MAX_REFERENCES)]
    if filters:
        allowed = view.files.ids[filters.allowed(view.files)]
        rows = rows[snapshot.rows_of_contents(allowed)[rows]]
    rows = rows[spaced_indices(len(rows), MAX_CLIPS)]
    if not len(rows):
        return []
    scores = measure_unusualness(snapshot, rows, references)
    best = sorted(_choose(snapshot, rows, scores, k), key=lambda pair: -pair[1])
    details = ClipDetails(snapshot, [clip for clip, _ in best])
    options = SearchOptions(filters=filters)
    return [
        make_hit(details, clip.row, options, rank, score, _whole(clip), ())
        for rank, (clip, score) in enumerate(best, 1)
    ]


def _whole(clip: Clip) -> Moment:
    return Moment(clip.start, clip.end, (clip.start + clip.end) / 2)


def measure_unusualness(
    snapshot: Snapshot, rows: NDArray[np.int64], references: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Unusualness of the clips in ``rows`` against ``references``; 0 if there is no other clip."""
    reference_vectors = snapshot.vectors_at(references)
    contents = snapshot.content_ids
    scores = np.zeros(len(rows), np.float32)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        cosines = snapshot.vectors_at(block) @ reference_vectors.T
        is_beside = (contents[block][:, None] == contents[references][None]) & (
            np.abs(block[:, None] - references[None]) <= BESIDE
        )
        cosines[is_beside] = -np.inf
        count = min(NEIGHBOURS, len(references))
        nearest = -np.partition(-cosines, count - 1, axis=1)[:, :count]
        is_known = np.isfinite(nearest)
        total = np.where(is_known, nearest, 0).sum(axis=1)
        num_known = is_known.sum(axis=1)
        unusual = 1 - total / np.maximum(num_known, 1)
        scores[start : start + BLOCK] = np.where(num_known > 0, unusual, 0)
    return scores


def _choose(
    snapshot: Snapshot, rows: NDArray[np.int64], scores: NDArray[np.float32], k: int
) -> list[tuple[Clip, float]]:
    """Choose k clips: the best of each file first, then the next of each, some time apart."""
    clips: list[tuple[Clip, float]] = []
    times: dict[int, list[float]] = defaultdict(list)
    for clip, score in _by_turns(snapshot, rows, scores):
        is_near = any(abs(clip.start - other) < APART for other in times[clip.content_id])
        if is_near or _is_plain(snapshot.thumbnail(clip.row)):
            continue
        times[clip.content_id].append(clip.start)
        clips.append((clip, score))
        if len(clips) == k:
            break
    return clips


def _by_turns(
    snapshot: Snapshot, rows: NDArray[np.int64], scores: NDArray[np.float32]
) -> Iterator[tuple[Clip, float]]:
    """The most unusual clip of each file, by unusualness, then the second of each, and so on."""
    contents = snapshot.content_ids[rows].astype(np.int64)
    order = np.lexsort((-scores, contents))
    starts = np.flatnonzero(np.diff(contents[order], prepend=-1))
    turns = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    order = order[np.lexsort((-scores[order], turns))]
    for start in range(0, len(order), 256):
        part = order[start : start + 256]
        for clip, number in zip(snapshot.clips(rows[part]), part.tolist(), strict=True):
            yield clip, float(scores[number])


def _is_plain(thumbnail: bytes) -> bool:
    """Return whether a thumbnail has one colour; False if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(thumbnail), formats=("JPEG",)) as image:
            return float(np.asarray(image.convert("L")).std()) <= PLAIN
    except OSError:
        return False
