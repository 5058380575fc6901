r"""Highlights: the most unusual moments of a store.

The unusualness of a clip is its mean distance from its nearest neighbours elsewhere:

.. math::
    u_i = 1 - \frac{1}{n} \sum_{j \in \mathrm{nearest}(i, n)} \cos(v_i, v_j)

v are coarse vectors, n is 10, and j runs over up to 2,048 clips, evenly spaced in the store,
without those right beside i in the same file. Frequent scenes have near neighbours, unique ones
have none. Clips of one plain colour (black leader, a covered lens) are left out, and so are damaged
files, whose broken frames resemble nothing else. Every file first contributes its most unusual
moment, then its second, so that one odd file does not fill the list.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from eaglenet.search.engine import Engine
from eaglenet.search.hit import Hit, Moment
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
"""Maximum clips to rate; larger stores are sampled evenly."""
NUM_BESIDE = 4
"""Rows before and after a clip of the same file that it is not compared with: they may overlap."""
MIN_SECONDS_APART = 30.0
"""Minimum time between two highlights of one file."""
BLOCK = 4096
MAX_PLAIN_DEVIATION = 6.0
"""Maximum standard deviation of the brightness (0 to 255) of a thumbnail of one colour."""


def find_highlights(engine: Engine, k: int = 10, filters: Filters | None = None) -> HitList:
    """Return the k most unusual moments, the most unusual first; the score is the unusualness.

    ``filters`` limit the files of highlights, which are still compared with the whole store.
    """
    k = check_count(k)
    find = partial(_find, k=k, filters=filters or Filters())
    return HitList(engine.read(find), engine)


def _find(view: StoreView, k: int, filters: Filters) -> list[Hit]:
    snapshot = view.snapshot
    rows = snapshot.visible_rows()
    references = rows[spaced_indices(len(rows), MAX_REFERENCES)]
    if filters:
        content_ids = view.files.ids[filters.matches(view.files)]
        rows = rows[snapshot.rows_of_contents(content_ids)[rows]]
    if view.files.damage:
        damaged_ids = view.files.ids[list(view.files.damage)]
        rows = rows[~snapshot.rows_of_contents(damaged_ids)[rows]]
    rows = rows[spaced_indices(len(rows), MAX_CLIPS)]
    if not len(rows):
        return []
    scores = measure_unusualness(snapshot, rows, references)
    best = sorted(_choose(snapshot, rows, scores, k), key=lambda pair: -pair[1])
    details = ClipDetails(snapshot, [clip for clip, _ in best])
    options = SearchOptions(filters=filters)
    hits = []
    for rank, (clip, score) in enumerate(best, 1):
        moment = Moment(clip.start, clip.end, (clip.start + clip.end) / 2)
        hits.append(make_hit(details, clip.row, options, rank, score, moment, ()))
    return hits


def measure_unusualness(
    snapshot: Snapshot, rows: NDArray[np.int64], references: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the unusualness of the clips in ``rows``; 0 if ``references`` has no other clip."""
    reference_vectors = snapshot.vectors_at(references)
    contents = snapshot.content_ids
    scores = np.zeros(len(rows), np.float32)
    for start in range(0, len(rows), BLOCK):
        block = rows[start : start + BLOCK]
        cosines = snapshot.vectors_at(block) @ reference_vectors.T
        is_beside = (contents[block][:, None] == contents[references][None]) & (
            np.abs(block[:, None] - references[None]) <= NUM_BESIDE
        )
        cosines[is_beside] = -np.inf
        count = min(NEIGHBOURS, len(references))
        nearest = -np.partition(-cosines, count - 1, axis=1)[:, :count]
        is_other = np.isfinite(nearest)
        total = np.where(is_other, nearest, 0).sum(axis=1)
        num_others = is_other.sum(axis=1)
        unusualness = 1 - total / np.maximum(num_others, 1)
        scores[start : start + BLOCK] = np.where(num_others > 0, unusualness, 0)
    return scores


def _choose(
    snapshot: Snapshot, rows: NDArray[np.int64], scores: NDArray[np.float32], k: int
) -> list[tuple[Clip, float]]:
    """Choose k clips: the best of each file first, then the next of each, some time apart."""
    clips: list[tuple[Clip, float]] = []
    times: dict[int, list[float]] = defaultdict(list)
    for clip, score in _alternate_files(snapshot, rows, scores):
        is_near = any(
            abs(clip.start - other) < MIN_SECONDS_APART for other in times[clip.content_id]
        )
        if is_near or _is_plain(snapshot.thumbnail(clip.row)):
            continue
        times[clip.content_id].append(clip.start)
        clips.append((clip, score))
        if len(clips) == k:
            break
    return clips


def _alternate_files(
    snapshot: Snapshot, rows: NDArray[np.int64], scores: NDArray[np.float32]
) -> Iterator[tuple[Clip, float]]:
    """Yield the most unusual clip of each file, by unusualness, then the second, and so on."""
    contents = snapshot.content_ids[rows].astype(np.int64)
    order = np.lexsort((-scores, contents))
    starts = np.flatnonzero(np.diff(contents[order], prepend=-1))
    ranks_in_file = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    order = order[np.lexsort((-scores[order], ranks_in_file))]
    for start in range(0, len(order), 256):
        batch = order[start : start + 256]
        for clip, number in zip(snapshot.clips(rows[batch]), batch.tolist(), strict=True):
            yield clip, float(scores[number])


def _is_plain(thumbnail: bytes) -> bool:
    """Return whether a thumbnail has one colour; False if it cannot be read."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(thumbnail), formats=("JPEG",)) as image:
            return float(np.asarray(image.convert("L")).std()) <= MAX_PLAIN_DEVIATION
    except OSError:
        return False
