"""Results of searches: lists of hits, ranked captions and explanations."""

from __future__ import annotations

import base64
import contextlib
import html
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import EagleNetError, StoreError, UsageError, missing_extra, shell_quote
from eaglenet.core.text import escape_line, format_time
from eaglenet.search.confidence import match_text
from eaglenet.search.grammar import AnyQuery
from eaglenet.search.hit import Hit, Moment, round_times
from eaglenet.search.model import ClipFeatures, SearchModel
from eaglenet.search.options import SearchOptions, path_matcher
from eaglenet.search.query import clean_texts
from eaglenet.search.reranking import EncodedQuery
from eaglenet.search.selection import (
    Candidates,
    ClipDetails,
    find_moment,
    select,
    select_transcripts,
)
from eaglenet.search.shortlist import hubness_offsets
from eaglenet.search.transcripts import ClipTranscript, fuse_scores
from eaglenet.store.object_storage import is_object_url
from eaglenet.store.records import FileTable
from eaglenet.store.snapshot import Snapshot

if TYPE_CHECKING:
    import pandas
    import pyarrow

    from eaglenet.video.input_file import SharedFile

CAPTION_BATCH = 256


@dataclass(frozen=True)
class SearchResult:
    """A query and its hits."""

    query: AnyQuery
    hits: list[Hit]
    clip_title: str = ""
    """File and time of the clip that is the query."""

    @property
    def title(self) -> str:
        return self.clip_title or self.query.title


@dataclass(frozen=True)
class CaptionHit:
    """One caption of :meth:`Engine.best_captions`; ``rank`` starts at 1."""

    rank: int
    caption: str
    score: float
    moment: Moment


@dataclass(frozen=True)
class Explanation:
    """The scores of one clip for a query."""

    clip_id: str
    score: float
    coarse_score: float
    moment: Moment
    frames: tuple[tuple[float, float], ...]
    """Time in the file, in seconds, and score of each frame."""


def make_hits(
    candidates: Candidates, query: EncodedQuery, k: int, options: SearchOptions
) -> list[Hit]:
    """Rank candidates and return the k best as hits.

    With transcripts, :func:`fuse_scores` ranks, and ``matched_in`` of a hit contains ``visual`` if
    its frames alone would rank it among the k best.
    """
    snapshot, shortlist = candidates.snapshot, candidates.shortlist
    if not len(shortlist.rows):
        return []
    scores = shortlist.cosines
    if options.rerank:
        scores = exact_scores(snapshot, query, shortlist.rows, candidates.features)
    if not np.isfinite(scores).all():
        raise StoreError(
            f"the features in {snapshot.location} are damaged (scores are not finite); rebuild "
            f"them: eaglenet store repair --store {shell_quote(snapshot.location)}"
        )
    # Stable, so that equal scores keep the order of the shortlist.
    order = np.argsort(-scores, kind="stable").tolist()
    visual_rows = {int(shortlist.rows[number]) for number in order[:k]}
    rank_scores = scores.tolist()
    if candidates.transcripts:
        strengths = {row: clip.strength for row, clip in candidates.transcripts.items()}
        fused_scores = fuse_scores([int(shortlist.rows[number]) for number in order], strengths)
        rank_scores = [fused_scores[int(row)] for row in shortlist.rows]
        order.sort(key=lambda number: -rank_scores[number])
    hits = []
    for rank, selection in enumerate(select(candidates, query, order, k, options), 1):
        number = selection.number
        row = int(shortlist.rows[number])
        more, copies = (
            shortlist.rows[others].tolist() for others in (selection.more, selection.copies)
        )
        score, moment = rank_scores[number], selection.moment
        hit = make_hit(candidates.details, row, options, rank, score, moment, more, copies)
        hit = replace(hit, coarse_score=float(shortlist.cosines[number]))
        if candidates.transcripts:
            metadata = {**hit.metadata, "visual_score": float(scores[number])}
            hit = replace(hit, metadata=metadata)
        if row not in candidates.transcripts:
            hit = replace(hit, confidence=candidates.confidences.get(row))
        else:
            hit = _add_transcript(hit, candidates.transcripts[row], is_visual=row in visual_rows)
        hits.append(hit)
    return hits


def exact_scores(
    snapshot: Snapshot, query: EncodedQuery, rows: NDArray[np.int64], clips: ClipFeatures
) -> NDArray[np.float32]:
    """Return the exact scores of clips minus their hubness offsets."""
    scores = query.score(clips)
    offsets = hubness_offsets(snapshot, rows, query.exact_hubness_weight)
    return scores if offsets is None else (scores - offsets).astype(np.float32)


def make_transcript_hits(
    snapshot: Snapshot, clips: Sequence[ClipTranscript], k: int, options: SearchOptions
) -> list[Hit]:
    """Return the k best clips by transcripts alone as hits; ``coarse_score`` is 0."""
    hits = []
    details = ClipDetails(snapshot, [each.clip for each in clips])
    for rank, selection in enumerate(select_transcripts(details, clips, k, options), 1):
        clip, more = clips[selection.number], [clips[number].row for number in selection.more]
        hit = make_hit(details, clip.row, options, rank, clip.strength, selection.moment, more)
        hits.append(_add_transcript(hit, clip, is_visual=False))
    return hits


def make_hit(
    details: ClipDetails,
    row: int,
    options: SearchOptions,
    rank: int,
    score: float,
    moment: Moment,
    more: Sequence[int],
    copies: Sequence[int] = (),
) -> Hit:
    """Make a hit from the clip in ``row``.

    ``more``: rows of other clips of the file; ``copies``: rows of clips of its near copies.
    """
    paths = details.files.paths[details.file(row)]
    matches = path_matcher(options.filters.path, details.files.roots)
    path = first_existing([path for path in paths if matches(path)] or paths)
    return Hit(
        rank=rank,
        clip_id=details.clip(row).id,
        path=path,
        score=float(score),
        coarse_score=0.0,
        moment=moment,
        duration=details.duration(row),
        metadata=_metadata(details, row, more, copies, path),
    )


def _add_transcript(hit: Hit, clip: ClipTranscript, *, is_visual: bool) -> Hit:
    return replace(
        hit,
        matched_in=(*clip.modalities, "visual") if is_visual else clip.modalities,
        transcript=clip.lines,
        metadata={**hit.metadata, "transcript_score": clip.strength},
    )


def first_existing(paths: Sequence[str]) -> str:
    """Return the first path that exists, or else the first path."""
    if len(paths) == 1:
        return paths[0]
    return next((path for path in paths if os.path.exists(path)), paths[0])


def _metadata(
    details: ClipDetails, row: int, more: Sequence[int], copies: Sequence[int], hit_path: str
) -> dict[str, Any]:
    clip, files, file = details.clip(row), details.files, details.file(row)
    metadata: dict[str, Any] = {
        "clip_start": clip.start,
        "clip_end": clip.end,
        "width": files.widths[file],
        "height": files.heights[file],
        "modified": float(files.modification_times[file]),
        "tags": files.tags[file],
        **recording_of(files, file),
    }
    from_keyframes = details.snapshot.from_keyframes
    if from_keyframes is not None and from_keyframes[row]:
        metadata["from_keyframes"] = True
    if len(files.paths[file]) > 1:
        metadata["also_at"] = [path for path in files.paths[file] if path != hit_path]
    if more:
        metadata["more"] = [details.clip(other).id for other in more]
    if copies:
        copy_paths = (first_existing(files.paths[details.file(other)]) for other in copies)
        metadata["copies"] = list(dict.fromkeys(copy_paths))
    return metadata


def recording_of(files: FileTable, number: int) -> dict[str, Any]:
    """Return time, place and camera of a recording, and its damage; None or empty if unknown."""
    values = {
        "recorded": files.recording_times[number],
        "latitude": files.latitudes[number],
        "longitude": files.longitudes[number],
    }
    return {
        **{name: None if math.isnan(value) else float(value) for name, value in values.items()},
        "camera": files.cameras[number] or "",
        "damage": files.damage.get(number, ""),
    }


def rank_captions(
    model: SearchModel,
    video: ClipFeatures,
    span: tuple[float, float],
    captions: Sequence[str],
    k: int,
) -> list[CaptionHit]:
    """Return the k captions with the highest exact scores for one video."""
    texts = clean_texts(captions, "captions")
    scores, frame_scores = [], []
    for start in range(0, len(texts), CAPTION_BATCH):
        encoded_texts = model.encode_texts(texts[start : start + CAPTION_BATCH])
        scores.append(model.score(encoded_texts, video)[:, 0])
        frame_scores.append(model.frame_scores(encoded_texts, video)[:, 0])
    values, frames = np.concatenate(scores), np.concatenate(frame_scores)
    order = np.argsort(-values, kind="stable")[:k].tolist()
    return [
        CaptionHit(
            rank=rank,
            caption=captions[number],
            score=float(values[number]),
            moment=find_moment(frames[number].tolist(), video.seconds[0].tolist(), span),
        )
        for rank, number in enumerate(order, 1)
    ]


def explain_clip(
    snapshot: Snapshot, query: EncodedQuery, row: int, features: ClipFeatures
) -> Explanation:
    """Explain the score of the clip in ``row``; ``features`` are those of the clip."""
    (clip,), rows = snapshot.clips([row]), np.array([row])
    frames, seconds = query.frame_scores(features)[0], features.seconds[0]
    offsets = hubness_offsets(snapshot, rows, query.hubness_weight)
    cosine = float(snapshot.vectors_at(rows)[0] @ query.vector)
    pairs = sorted(zip(seconds.tolist(), frames.tolist(), strict=True))
    return Explanation(
        clip_id=clip.id,
        score=float(exact_scores(snapshot, query, rows, features)[0]),
        coarse_score=cosine - (0.0 if offsets is None else float(offsets[0])),
        moment=find_moment(frames.tolist(), seconds.tolist(), (clip.start, clip.end)),
        frames=tuple(pair for pair in pairs if pair[1] != float("-inf")),
    )


class ClipSource(Protocol):
    """Location, thumbnails and files of the clips of a store; an :class:`Engine` has them."""

    @property
    def location(self) -> str: ...

    def thumbnail(self, clip_id: str) -> bytes: ...

    def open_file(self, clip_id: str) -> SharedFile: ...


class HitList(list[Hit]):
    """Hits of one query, best first: a list that converts to tables and renders in notebooks."""

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        source: ClipSource | None = None,
        notice: str = "",
        why_empty: str = "",
    ) -> None:
        super().__init__(hits)
        self._source = source
        for hit in self if source is not None else ():
            hit.set_display(self._show_hit)
        self.notice = notice
        """Remarks for the user: a date read from the text, a language that the model does not know,
        a negation, missing confidences, or hits that a judge did not rate."""
        self.why_empty = why_empty
        """Reason for no hits, such as a filter that no file meets; may be empty."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the open engine."""
        return HitList, (list(self), None, self.notice, self.why_empty)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Hit: ...

    @overload
    def __getitem__(self, index: slice) -> HitList: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Hit | HitList:
        if isinstance(index, slice):
            return HitList(super().__getitem__(index), self._source, self.notice)
        return super().__getitem__(index)

    def __repr__(self) -> str:
        """Show one line per hit."""
        lines = (
            "  ".join(
                filter(None, (f"{hit.rank}.", _span(hit), match_text(hit), escape_line(hit.path)))
            )
            for hit in self
        )
        note = f"note: {escape_line(self.notice)}" if self.notice else ""
        nothing = f"no hits: {escape_line(self.why_empty)}" if self.why_empty else "no hits"
        return "\n".join(filter(None, ("\n".join(lines) or nothing, note)))

    def to_rows(self) -> list[dict[str, Any]]:
        """Return one flat dictionary per hit; only temporal queries have ``steps``."""
        rows: list[dict[str, Any]] = [
            {
                "rank": hit.rank,
                "score": hit.score,
                "confidence": hit.confidence,
                "match": hit.match,
                "path": hit.path,
                "start": hit.moment.start,
                "end": hit.moment.end,
                "best": hit.moment.best,
                "duration": hit.duration,
                "clip_id": hit.clip_id,
                "matched_in": ",".join(hit.matched_in),
                "text": " / ".join(line.text for line in hit.transcript),
                "steps": list(hit.metadata.get("steps", ())),
                **{name: hit.metadata.get(name) for name in RECORDING},
            }
            for hit in self
        ]
        return [round_times(row) for row in rows]

    def to_pandas(self) -> pandas.DataFrame:
        """Return a data frame with the columns of :meth:`to_rows`; ``recorded`` is a UTC time."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise UsageError("to_pandas needs pandas: pip install pandas") from error
        frame = pandas.DataFrame(self._rows_with_times(), columns=COLUMNS)
        text = pandas.Series(["text"]).dtype  # It depends on the version of pandas.
        kinds = {
            **dict.fromkeys(COLUMNS, text),
            **dict.fromkeys(NUMBERS, "float64"),
            "rank": "int64",
            "recorded": "datetime64[ms, UTC]",
            "steps": "object",
        }
        return frame.astype(kinds)

    def to_arrow(self) -> pyarrow.Table:
        """Return an Arrow table with the columns of :meth:`to_rows`; ``recorded`` is a UTC time."""
        try:
            import pyarrow
        except ModuleNotFoundError as error:
            raise missing_extra(error, "to_arrow") or error from error
        number, text = pyarrow.float64(), pyarrow.string()
        step = pyarrow.struct(
            {"query": text, "clip_id": text, **dict.fromkeys(("start", "end", "best"), number)}
        )
        types = {
            **dict.fromkeys(COLUMNS, text),
            **dict.fromkeys(NUMBERS, number),
            "rank": pyarrow.int64(),
            "recorded": pyarrow.timestamp("ms", "UTC"),
            "steps": pyarrow.list_(step),
        }
        return pyarrow.Table.from_pylist(self._rows_with_times(), pyarrow.schema(types))

    def _rows_with_times(self) -> list[dict[str, Any]]:
        """Return :meth:`to_rows` with ``recorded`` as a time instead of seconds since 1970."""
        rows = self.to_rows()
        for row in rows:
            if row["recorded"] is not None:
                row["recorded"] = datetime.fromtimestamp(round(row["recorded"], 3), UTC)
        return rows

    def _repr_html_(self) -> str:
        """Show thumbnail, time and path of each moment in a notebook.

        Without links, because browsers do not open local files from a notebook; one hit has a
        player.
        """
        notice = f"<p>{html.escape(self.notice)}</p>" if self.notice else ""
        if not self:
            reason = f": {html.escape(self.why_empty)}" if self.why_empty else "."
            return f"{notice}<p>No moments found{reason}</p>"
        cards = "".join(map(self._card, self))
        note = ""
        if self._source is not None:
            note = "<small>A hit in a cell of its own, such as hits[0], can be played.</small>"
            if "<img" not in cards:
                note = "<p>No thumbnails: the engine is closed, or the clips were removed.</p>"
        return f'{notice}<div style="display:flex;flex-wrap:wrap;gap:12px">{cards}</div>{note}'

    def _card(self, hit: Hit) -> str:
        style = "width:180px;overflow-wrap:anywhere"
        return f'<div style="{style}">{self._image(hit)}{_caption(hit)}</div>'

    def _show_hit(self, hit: Hit) -> str:
        """Show one hit with a player of its moment, or else its thumbnail."""
        lines = "".join(
            f"<div>&ldquo;{html.escape(escape_line(line.text))}&rdquo;</div>"
            for line in hit.transcript
        )
        player = "" if self._source is None else _player(hit, self._source)
        return f"<div>{player or self._image(hit)}{_caption(hit)}{lines}</div>"

    def _image(self, hit: Hit) -> str:
        if self._source is None:
            return ""
        try:
            data = base64.b64encode(self._source.thumbnail(hit.clip_id)).decode()
        except (EagleNetError, OSError):
            return ""  # The clip was removed meanwhile; show the others.
        return f'<img alt="" style="width:180px" src="data:image/jpeg;base64,{data}">'


MAX_PLAYED_SECONDS = 60.0
MAX_PLAYED_BYTES = 16 * 2**20
"""Limits of a moment that a notebook plays; the notebook file contains it."""
MAX_ENCODING_SECONDS = 60.0
"""Time limit for encoding a moment; the cell waits for it."""


def _player(hit: Hit, source: ClipSource) -> str:
    """Return a player with the moment itself; empty if it cannot be decoded or is too large.

    Also empty for a file that has changed since it was indexed: notebooks are published.
    """
    if not hit.duration or is_object_url(hit.path):
        return ""
    from eaglenet.video.saving import MomentSaver, encode_for_browsers

    start, end = hit.moment.start, min(hit.moment.end, hit.moment.start + MAX_PLAYED_SECONDS)
    try:
        with (
            contextlib.closing(source.open_file(hit.clip_id)) as file,
            MomentSaver(encode_for_browsers, MAX_ENCODING_SECONDS) as saver,
        ):
            file.require_descriptor()
            content = saver.read(file, start, end)
    except (EagleNetError, OSError):
        return ""
    if len(content) > MAX_PLAYED_BYTES:
        return ""
    data = base64.b64encode(content).decode()
    style = "max-width:100%;max-height:360px"
    return f'<video controls style="{style}" src="data:video/mp4;base64,{data}"></video>'


def _caption(hit: Hit) -> str:
    path = Path(hit.path)
    return (
        f"<div><b>{hit.rank}. {html.escape(escape_line(path.name))}</b></div>"
        f"<div>{' &middot; '.join(filter(None, (_span(hit), match_text(hit))))}</div>"
        f"<small>{html.escape(escape_line(str(path.parent)))}</small>"
    )


RECORDING = ("recorded", "latitude", "longitude", "camera")
COLUMNS = [
    *("rank", "score", "confidence", "match", "path", "start", "end", "best", "duration"),
    *("clip_id", "matched_in", "text", "steps", *RECORDING),
]
NUMBERS = (
    *("score", "confidence", "start", "end", "best", "duration"),
    *("latitude", "longitude"),
)
"""Columns of one type in every table, even if no hit has a value, so that tables can be joined."""


def _span(hit: Hit) -> str:
    if not hit.duration:
        return "image"
    return f"{format_time(hit.moment.start)} to {format_time(hit.moment.end)}"
