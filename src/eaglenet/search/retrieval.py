"""Retrieval: queries in, hits out, for one version of a store and its model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.core.errors import StoreError, UnreachableError, UsageError
from eaglenet.core.types import Hit, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.search.hits import make_hits, make_transcript_hits
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query, TranscriptQuery
from eaglenet.search.reranking import EncodedFrames, EncodedQuery, EncodedText, Reranker
from eaglenet.search.selection import Candidates
from eaglenet.search.shortlist import Scan, Shortlist, make_shortlists, scan_name
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.words import WordIndex
from eaglenet.search.transcripts import MIN_COVERAGE, ClipTranscript, rank_clips
from eaglenet.video.inputs import clips_of_image, clips_of_video

ATTEMPTS = 5


class TranscriptIndex:
    """The transcripts of a store, opened on first use and again after the store has changed.

    A store without transcripts is not opened, because importing its database takes seconds.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._current: tuple[Hashable, WordIndex | None] | None = None

    def open(self) -> WordIndex | None:
        """Return the newest version; None if the store has no transcripts."""
        current = self._current
        try:
            stamp = self.store.words_stamp()
        except OSError as error:
            if current is None:
                raise UnreachableError(
                    f"the transcripts of {self.store.location} cannot be read: {error}"
                ) from error
            return current[1]  # The store is gone; what is open can still be searched.
        if stamp is None:
            return None
        if current is None or current[0] != stamp:
            current = self._current = (stamp, self.store.words())
        return current[1]


@dataclass(frozen=True)
class StoreView:
    """The manifest, snapshot and transcripts of a store that belong together.

    A search uses the view it began with.
    """

    store: Store
    snapshot: Snapshot
    transcripts: TranscriptIndex
    stamp: Hashable | None

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    @classmethod
    def open(cls, store: Store) -> StoreView:
        """Open a store; one that changes meanwhile is read again on its first use."""
        stamp = None
        with suppress(OSError):  # There is no snapshot; the next line says so.
            stamp = store.stamp()
        snapshot = store.snapshot()
        is_current = (
            stamp is not None
            and open_store(store.location).manifest == store.manifest
            and store.stamp() == stamp
        )
        return cls(store, snapshot, TranscriptIndex(store), stamp if is_current else None)

    def reopen(self) -> StoreView:
        """Read the store again, with its manifest: the folder may hold another store now."""
        for _ in range(ATTEMPTS):
            stamp = self.store.stamp()
            store = open_store(self.store.location)
            snapshot = store.snapshot()
            if store.stamp() == stamp:
                return StoreView(store, snapshot, self.transcripts, stamp)
        raise StoreError(f"{self.store.location} is being replaced; search again when that is done")

    def num_lines(self) -> int:
        """Number of transcript lines."""
        index = self.transcripts.open()
        return 0 if index is None else index.count()

    def info(self) -> dict[str, Any]:
        """Describe the store and how it is searched."""
        snapshot, manifest = self.snapshot, self.manifest
        return {
            "store": self.store.location,
            "clips": len(snapshot),
            "files": sum(len(paths) for paths in snapshot.files.paths),
            "contents": len(snapshot.files),
            "hours": float(snapshot.files.durations.sum()) / 3600,
            "model": manifest.model,
            "method": manifest.method,
            "identity": manifest.identity,
            "dim": manifest.dim,
            "frames": manifest.layout.num_frames,
            "index": scan_name(snapshot),
            "hubness": self._hubness(),
            "version": snapshot.version,
            "roots": list(manifest.roots),
            "tags": sorted({tag for tags in snapshot.files.tags for tag in tags}),
            "lines": self.num_lines(),
        }

    def _hubness(self) -> str:
        """Name of the hubness bank of the snapshot."""
        bank, note = self.snapshot.bank, self.manifest.hubness
        if bank is None:
            return "off"
        return str(note) if note is not None and note.file == bank else bank


@dataclass(frozen=True)
class _Task:
    """One query on its way to hits."""

    query: Query
    is_visual: bool
    """Whether frames are compared."""
    text: str = ""
    """Text to encode; empty for an image, a video or a clip."""
    transcripts: Sequence[ClipTranscript] = ()
    """Clips with matching transcripts, best first."""
    excluded_row: int | None = None
    """Row of the clip that is the query itself."""


@dataclass(frozen=True)
class Example:
    """The features of an image, a video or a clip, the times of its frames, and its span."""

    features: VideoFeatures
    seconds: Float[Tensor, "frames"]
    span: tuple[float, float]


@dataclass(frozen=True)
class Retriever:
    """Searches one view of a store.

    ``load_model`` is called when a query needs the model: one for transcripts alone does not.
    ``scan`` makes the shortlists on other machines.
    """

    view: StoreView
    load_model: Callable[[], tuple[Method, Reranker]]
    scan: Scan | None = None

    @cached_property
    def model(self) -> tuple[Method, Reranker]:
        return self.load_model()

    @torch.no_grad()
    def search(self, queries: Sequence[Query], k: int, options: SearchOptions) -> list[list[Hit]]:
        """Return the k best hits per query."""
        index = self.view.transcripts.open() if options.has_transcripts else None
        tasks = [self._start(query, index, options) for query in queries]
        visual = iter(self._search_frames([task for task in tasks if task.is_visual], k, options))
        return [
            next(visual)
            if task.is_visual
            else make_transcript_hits(self.view.snapshot, task.transcripts, k, options)
            for task in tasks
        ]

    def _start(self, query: Query, index: WordIndex | None, options: SearchOptions) -> _Task:
        """Rank transcripts, and decide whether frames are compared."""
        snapshot, filters = self.view.snapshot, options.filters
        if query.text is None:
            if "visual" not in options.modalities:
                raise UsageError(
                    "an image, a video or a clip searches in visual only; speech and screen-text "
                    "need a text"
                )
            has_row = query.clip_id is not None
            row = snapshot.row(snapshot.full_id(query.clip_id or "")) if has_row else None
            return _Task(query, is_visual=True, excluded_row=row)
        is_visual = "visual" in options.modalities
        if index is None or query.transcript is None:
            return _Task(query, is_visual, query.text)
        transcripts = rank_clips(
            index,
            query.transcript,
            snapshot,
            options.modalities,
            allowed=filters.allowed(snapshot.files) if filters else None,
            negatives=[TranscriptQuery.parse(text) for text in query.negatives],
        )
        # A phrase in quotation marks is looked for in transcripts alone.
        is_visual = is_visual and not query.transcript.has_only_phrases
        return _Task(query, is_visual, query.transcript.plain or query.text, transcripts)

    def _search_frames(
        self, tasks: Sequence[_Task], k: int, options: SearchOptions
    ) -> list[list[Hit]]:
        """Compare frames; the texts of all queries are encoded in one batch."""
        if not tasks:
            return []
        encoded = self._encode(tasks)
        size = options.shortlist_size(k)
        # One more clip, because a clip that is the query itself is removed again.
        has_excluded = any(task.excluded_row is not None for task in tasks)
        shortlists = make_shortlists(
            self.view.snapshot,
            torch.stack([query.vector.float().cpu() for query in encoded]),
            size + has_excluded,
            options.filters,
            self.scan,
            [query.hubness_weight for query in encoded],
        )
        results = []
        for task, query, shortlist in zip(tasks, encoded, shortlists, strict=True):
            if task.excluded_row is not None:
                shortlist = shortlist.without(task.excluded_row)
            results.append(self._rank(task, query, shortlist.first(size), k, options))
        return results

    def _encode(self, tasks: Sequence[_Task]) -> list[EncodedQuery]:
        method, reranker = self.model
        texts = [task.text for task in tasks if task.text]
        texts += [text for task in tasks for text in task.query.negatives]
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        features = method.encode_text(list(rows)) if rows else None
        encoded: list[EncodedQuery] = []
        for task in tasks:
            if features is not None and task.text:
                own = [rows[text] for text in (task.text, *task.query.negatives)]
                encoded.append(EncodedText(reranker, features[own]))
            else:
                encoded.append(EncodedFrames(method, self.encode_example(task.query).features))
        return encoded

    @torch.no_grad()
    def encode_example(self, query: Query) -> Example:
        """Encode the image or video of a query, or read the features of its clip."""
        method, snapshot = self.model[0], self.view.snapshot
        if query.clip_id is not None:
            row = snapshot.row(snapshot.full_id(query.clip_id))
            stored = self.load(np.array([row]))
            return Example(stored.features, stored.seconds[0], snapshot.span(row))
        spec, clips = self.view.manifest.frame_spec, query.clips
        if query.video is not None:
            clips = clips_of_video(query.video, spec, query.window)
        elif query.image is not None:
            clips = clips_of_image(query.image, spec)
        if clips is None:
            raise UsageError("expected an image, a video or a clip, not a text")
        features = method.encode_video(clips.to(method.device))
        return Example(features, clips.seconds[0], (0.0, float(clips.seconds[clips.mask].max())))

    def _rank(
        self,
        task: _Task,
        query: EncodedQuery,
        shortlist: Shortlist,
        k: int,
        options: SearchOptions,
    ) -> list[Hit]:
        """Rank a shortlist together with the clips that have the best transcripts."""
        snapshot, size = self.view.snapshot, options.shortlist_size(k)
        if not options.rerank and not options.group_files:
            shortlist = shortlist.first(k if options.keep_duplicates else 2 * k)
        matches = [clip for clip in task.transcripts if clip.coverage >= MIN_COVERAGE][:size]
        transcripts = {clip.row: clip for clip in matches}
        vector = query.vector.float().cpu()
        shortlist = shortlist.with_rows(snapshot, vector, list(transcripts), query.hubness_weight)
        clips = self.load(shortlist.rows)
        if options.rerank and isinstance(query, EncodedText):
            clips = query.reranker.prepare(clips, snapshot.names(shortlist.rows))
        return make_hits(Candidates(snapshot, shortlist, clips, transcripts), query, k, options)

    def load(self, rows: NDArray[np.int64]) -> StoredClips:
        """Read the features of clips."""
        records = self.view.snapshot.records(rows)
        return self.view.manifest.layout.unpack(records, self.model[0].device)
