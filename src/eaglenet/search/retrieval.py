"""Retrieval: queries in, hits out, for one version of a store and its model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.hits import Hit
from eaglenet.search.hits import make_hits, make_transcript_hits
from eaglenet.search.model import ClipFeatures, SearchModel
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query, TranscriptQuery
from eaglenet.search.reranking import EncodedFrames, EncodedQuery, EncodedText
from eaglenet.search.selection import Candidates
from eaglenet.search.shortlist import Scan, Shortlist, make_shortlists, scan_name
from eaglenet.search.transcripts import MIN_COVERAGE, ClipTranscript, rank_clips
from eaglenet.store.base import Store
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import FileTable
from eaglenet.store.snapshot import Snapshot


@dataclass(frozen=True)
class StoreView:
    """One version of a store. A search uses the view it began with."""

    store: Store
    snapshot: Snapshot

    @property
    def manifest(self) -> Manifest:
        return self.snapshot.manifest

    @classmethod
    def open(cls, store: Store) -> StoreView:
        return cls(store, store.snapshot())

    @cached_property
    def files(self) -> FileTable:
        """All files, for filters."""
        return self.snapshot.files()

    def info(self) -> dict[str, Any]:
        """Describe the store and how it is searched."""
        snapshot, manifest = self.snapshot, self.manifest
        bank = snapshot.hubness_bank
        return {
            "store": self.store.location,
            "clips": len(snapshot),
            "files": sum(len(paths) for paths in self.files.paths),
            "contents": len(self.files),
            "hours": float(self.files.durations.sum()) / 3600,
            "model": manifest.model,
            "method": manifest.method,
            "identity": manifest.identity,
            "dim": manifest.dim,
            "frames": manifest.layout.num_frames,
            "index": scan_name(snapshot),
            "hubness": "off" if bank is None else str(bank),
            "version": snapshot.version,
            "roots": list(manifest.roots),
            "tags": sorted({tag for tags in self.files.tags for tag in tags}),
            "lines": snapshot.num_lines,
        }


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
    """The features of an image, a video or a clip, and its span in seconds."""

    features: ClipFeatures
    span: tuple[float, float]


@dataclass(frozen=True)
class Retriever:
    """Searches one view of a store.

    ``load_model`` is called when a query needs the model: one for transcripts alone does not.
    ``scan`` makes the shortlists on other machines.
    """

    view: StoreView
    load_model: Callable[[], SearchModel]
    scan: Scan | None = None

    @cached_property
    def model(self) -> SearchModel:
        return self.load_model()

    def search(self, queries: Sequence[Query], k: int, options: SearchOptions) -> list[list[Hit]]:
        """Return the k best hits per query."""
        has_transcripts = options.has_transcripts and self.view.snapshot.num_lines > 0
        tasks = [self._start(query, options, has_transcripts) for query in queries]
        visual = iter(self._search_frames([task for task in tasks if task.is_visual], k, options))
        return [
            next(visual)
            if task.is_visual
            else make_transcript_hits(self.view.snapshot, task.transcripts, k, options)
            for task in tasks
        ]

    def _start(self, query: Query, options: SearchOptions, has_transcripts: bool) -> _Task:
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
        if not has_transcripts or query.transcript is None:
            return _Task(query, is_visual, query.text)
        # A phrase in quotation marks is looked for in transcripts alone.
        is_visual = is_visual and not query.transcript.has_only_phrases
        content_ids = None
        if filters:
            content_ids = self.view.files.ids[filters.allowed(self.view.files)].tolist()
        transcripts = rank_clips(
            snapshot,
            query.transcript,
            options.modalities,
            content_ids=content_ids,
            negatives=[TranscriptQuery.parse(text) for text in query.negatives],
            # A word that nobody says is often right, and describes what frames show.
            corrects_spelling=not is_visual,
        )
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
            np.stack([query.vector for query in encoded]),
            size + has_excluded,
            options.filters,
            self.scan,
            [query.hubness_weight for query in encoded],
            self.view.files if options.filters else None,
        )
        results = []
        for task, query, shortlist in zip(tasks, encoded, shortlists, strict=True):
            if task.excluded_row is not None:
                shortlist = shortlist.without(task.excluded_row)
            results.append(self._rank(task, query, shortlist.first(size), k, options))
        return results

    def _encode(self, tasks: Sequence[_Task]) -> list[EncodedQuery]:
        texts = [task.text for task in tasks if task.text]
        texts += [text for task in tasks for text in task.query.negatives]
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        encoded_texts = self.model.encode_texts(list(rows)) if rows else None
        encoded: list[EncodedQuery] = []
        for task in tasks:
            if encoded_texts is not None and task.text:
                own = [rows[text] for text in (task.text, *task.query.negatives)]
                encoded.append(EncodedText(self.model, encoded_texts[own]))
            else:
                example = self.encode_example(task.query)
                encoded.append(EncodedFrames(self.model, example.features))
        return encoded

    def encode_example(self, query: Query) -> Example:
        """Encode the image or video of a query, or read the features of its clip."""
        snapshot = self.view.snapshot
        if query.clip_id is not None:
            row = snapshot.row(snapshot.full_id(query.clip_id))
            (clip,) = snapshot.clips([row])
            return Example(self.load(np.array([row])), (clip.start, clip.end))
        from eaglenet.video.inputs import clips_of_image, clips_of_video

        spec, clips = self.view.manifest.frame_spec, query.clips
        if query.video is not None:
            clips = clips_of_video(query.video, spec, query.window)
        elif query.image is not None:
            clips = clips_of_image(query.image, spec)
        if clips is None:
            raise UsageError("expected an image, a video or a clip, not a text")
        # Tensors are arrays too: a user may have decoded the clip in torch.
        frames = np.asarray(clips.frames, np.uint8)
        mask, seconds = np.asarray(clips.mask, bool), np.asarray(clips.seconds, np.float32)
        features = self.model.encode_frames(frames, mask, seconds)
        return Example(features, (0.0, float(seconds[mask].max())))

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
        shortlist = shortlist.with_rows(
            snapshot, query.vector, list(transcripts), query.hubness_weight
        )
        features = self.load(shortlist.rows)
        return make_hits(Candidates(snapshot, shortlist, features, transcripts), query, k, options)

    def load(self, rows: NDArray[np.int64]) -> ClipFeatures:
        """Read the features of clips."""
        snapshot = self.view.snapshot
        arrays = self.view.manifest.layout.unpack(snapshot.features_at(rows))
        return ClipFeatures(arrays, snapshot.fingerprints(rows))
