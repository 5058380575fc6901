"""What would show a person the same thing twice: a moment in two clips, a film in two files."""

from __future__ import annotations

import io
from collections.abc import Container, Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.types import Moment

NEAR_SECONDS = 1.0
"""Best frames of one file that are closer than this show one moment."""
SAME_LENGTH = 0.5
"""Seconds by which near copies of a file, and their clips, may differ in time."""
SAME_FRAMES = 0.65
"""Mean cosine of the features of near copies, frame by frame. Clips of MSR-VTT had 0.71 to 0.94
with ``small`` when made a fifth of their size at x264's quality 34."""
WORST_FRAME = 0.5
"""Least cosine of any frame: what moves elsewhere is another film, however alike the rest."""
SAME_CHANGES = 0.65
"""Largest share of what changes in a clip that may change otherwise in a near copy; one fixed
camera on other days had 0.74 and more, compressed clips of MSR-VTT 0.33 and 0.39."""
STILL = 0.003
"""Squared distance of unit features from their mean below which nothing happens in a clip."""
SAME_PICTURE = 24.0
"""Largest difference of the thumbnails of near copies, in levels of 255, at 16 x 16 pixels: a thing
that is elsewhere shows in some of them, other compression in none (those clips had 4 to 14)."""
COMPARED_PICTURES = 8
"""Thumbnails of a file that have to agree, or all where it has fewer clips."""
SAME_SHAPE = 0.05
"""Difference of the logarithms of width over height."""
SIDE = 16
COMPARED = 512
"""Candidates that are compared with each other, the first of the shortlist."""


def apart(moment: Moment, shown: Sequence[Moment]) -> Moment | None:
    """The part of a moment that those ``shown`` of its file leave; None where it is one of them.

    It is one of them where its best frame lies in one of them or within ``NEAR_SECONDS`` of its
    best, or where less than half of it would be left.

    >>> apart(Moment(8.0, 12.0, 11.5), [Moment(6.0, 9.0, 7.0)])
    Moment(start=9.0, end=12.0, best=11.5)
    """
    for other in shown:
        if other.start <= moment.best <= other.end or is_near(moment, other):
            return None
    start = max([moment.start, *(other.end for other in shown if other.end < moment.best)])
    end = min([moment.end, *(other.start for other in shown if other.start > moment.best)])
    if end - start < (moment.end - moment.start) / 2:
        return None
    return Moment(start, end, moment.best)


def is_near(one: Moment, other: Moment) -> bool:
    """Whether two moments are at their best at about the same time."""
    return abs(one.best - other.best) < NEAR_SECONDS


def change_alike(first: Float[Tensor, "frames dim"], second: Float[Tensor, "frames dim"]) -> bool:
    """Whether what happens in two clips happens at the same frames, by their unit features.

    Compression moves the features of all frames alike, which counts for nothing here:

        mean_f |(a_f - mean a) - (b_f - mean b)|^2  <=  SAME_CHANGES max(var a, var b)

    One fixed camera on two days shows the same place, but not the same changes.
    """
    apart = [frames - frames.mean(dim=0) for frames in (first, second)]
    changes = max(float(each.square().sum(dim=-1).mean()) for each in apart)
    if changes < STILL:
        return True
    other = float((apart[0] - apart[1]).square().sum(dim=-1).mean())
    return other <= SAME_CHANGES * changes


class NearCopies:
    """Finds candidates that show what another candidate of another file shows."""

    def __init__(self, snapshot: Snapshot, rows: NDArray[np.int64], clips: StoredClips) -> None:
        """``rows`` and ``clips``: the candidates, in one order."""
        self.snapshot = snapshot
        self.clips = clips
        first = rows[:COMPARED]
        self.files = files = snapshot.columns["file_number"][first]
        times = np.stack(
            [
                snapshot.files.durations[files],
                snapshot.columns["start"][first],
                snapshot.columns["end"][first],
            ]
        )
        close = np.abs(times[:, :, None] - times[:, None, :]) <= SAME_LENGTH
        possible = close.all(axis=0) & (files[:, None] != files[None, :])
        self._possible = {
            int(number): np.flatnonzero(possible[number]).tolist()
            for number in np.flatnonzero(possible.any(axis=1))
        }
        self._same: dict[tuple[int, int], bool] = {}
        self._pictures: dict[int, tuple[float, NDArray[np.float32]] | None] = {}

    def among(self, number: int, others: Container[int]) -> int | None:
        """Which of the candidates ``others`` shows in another file what ``number`` does."""
        for other in self._possible.get(number, ()):
            if (
                other in others
                and self._has_same_frames(number, other)
                and self._shows_the_same(number, other)
            ):
                return int(other)
        return None

    def is_copy(self, number: int, other: int) -> bool:
        """Whether the files of two candidates are known to show the same."""
        if not self._same or max(number, other) >= len(self.files):
            return False
        return self._same.get(self._pair(number, other), False)

    def _pair(self, one: int, other: int) -> tuple[int, int]:
        first, second = int(self.files[one]), int(self.files[other])
        return min(first, second), max(first, second)

    def _has_same_frames(self, one: int, other: int) -> bool:
        frames, mask = self.clips.features.frames, self.clips.features.mask
        both = mask[one] & mask[other]
        if not bool(both.any()):
            return False
        first, second = (
            F.normalize(frames[number][both].float(), dim=-1) for number in (one, other)
        )
        cosines = (first * second).sum(dim=-1)
        return (
            float(cosines.mean()) >= SAME_FRAMES
            and float(cosines.min()) >= WORST_FRAME
            and change_alike(first, second)
        )

    def _shows_the_same(self, one: int, other: int) -> bool:
        """Whether the thumbnails of two files agree, clip by clip."""
        pair = self._pair(one, other)
        if pair not in self._same:
            first, second = (self._rows_of(file) for file in pair)
            self._same[pair] = len(first) == len(second) and all(
                self._is_same_picture(*rows) for rows in zip(first, second, strict=True)
            )
        return self._same[pair]

    def _rows_of(self, file: int) -> list[int]:
        """Some clips of a file, spread over it."""
        rows = np.flatnonzero(self.snapshot.columns["file_number"] == file)
        rows = rows[np.argsort(self.snapshot.columns["number"][rows])]
        places = np.linspace(0, len(rows) - 1, min(len(rows), COMPARED_PICTURES)).round()
        return [int(row) for row in rows[places.astype(np.int64)]]

    def _is_same_picture(self, row: int, other: int) -> bool:
        first, second = self._picture(row), self._picture(other)
        if first is None or second is None:
            return False
        is_same_shape = abs(np.log(first[0] / second[0])) < SAME_SHAPE
        return bool(is_same_shape and np.abs(first[1] - second[1]).max() <= SAME_PICTURE)

    def _picture(self, row: int) -> tuple[float, NDArray[np.float32]] | None:
        """Width over height and a few pixels of a thumbnail; None where it is no picture."""
        if row not in self._pictures:
            from PIL import Image

            content = self.snapshot.thumbnail(row)
            try:
                with Image.open(io.BytesIO(content), formats=("JPEG",)) as opened:
                    small = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BOX)
                    shape = opened.width / opened.height
            except (OSError, SyntaxError):
                self._pictures[row] = None
            else:
                self._pictures[row] = shape, np.asarray(small, np.float32)
        return self._pictures[row]
