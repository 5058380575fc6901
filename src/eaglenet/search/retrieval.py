"""Retrieval: queries in, hits out, for one version of a store and its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.core.hits import Hit
from eaglenet.models.meaning import MeaningEncoder
from eaglenet.search.confidence import SAMPLE_SIZE, Calibration, joint
from eaglenet.search.dates import DateRange
from eaglenet.search.grammar import AnyQuery, ComposedQuery, TemporalQuery
from eaglenet.search.hits import make_hits, make_transcript_hits
from eaglenet.search.model import ClipFeatures, SearchModel
from eaglenet.search.options import SearchOptions
from eaglenet.search.query import Query, TranscriptQuery
from eaglenet.search.reranking import (
    EncodedComposition,
    EncodedFrames,
    EncodedQuery,
    EncodedText,
    spaced_indices,
)
from eaglenet.search.selection import Candidates
from eaglenet.search.sequences import STEP_SHORTLIST, find_sequences
from eaglenet.search.shortlist import Scan, Shortlist, make_shortlists, scan_name
from eaglenet.search.transcripts import ClipTranscript, Meaning, rank_clips
from eaglenet.store.base import Store
from eaglenet.store.manifest import Manifest
from eaglenet.store.records import FileTable
from eaglenet.store.snapshot import Snapshot

if TYPE_CHECKING:
    from eaglenet.video.inputs import FrameBatch
    from eaglenet.video.query_decoder import QueryDecoder


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

    @cached_property
    def sample(self) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
        """Vectors of some clips, evenly spaced, and their hubness offsets."""
        snapshot = self.snapshot
        rows = snapshot.visible_rows()
        rows = rows[spaced_indices(len(rows), SAMPLE_SIZE)]
        offsets = snapshot.hubness_offsets
        return snapshot.vectors_at(rows), None if offsets is None else offsets[rows]

    def info(self) -> dict[str, Any]:
        """Describe the store and how it is searched."""
        snapshot, manifest = self.snapshot, self.manifest
        bank = snapshot.hubness_bank
        return {
            "store": self.store.location,
            "clips": len(snapshot),
            "keyframe_clips": (
                0 if snapshot.from_keyframes is None else int(snapshot.from_keyframes.sum())
            ),
            "files": sum(len(paths) for paths in self.files.paths),
            "distinct_files": len(self.files),
            "hours": float(self.files.durations.sum()) / 3600,
            "model": manifest.model,
            "method": manifest.method,
            "model_fingerprint": manifest.identity,
            "dimensions": manifest.dim,
            "frames_per_clip": manifest.layout.num_frames,
            "index": scan_name(snapshot),
            "hubness": "off" if bank is None else str(bank),
            "snapshot": snapshot.version,
            "folders": list(manifest.roots),
            "tags": sorted({tag for tags in self.files.tags for tag in tags}),
            "transcript_lines": snapshot.num_lines,
            "files_with_date": int(np.isfinite(self.files.recorded).sum()),
            "files_with_place": int(np.isfinite(self.files.latitudes).sum()),
            "files_with_unread_metadata": self.files.cameras.count(None),
        }


@dataclass(frozen=True)
class _Task:
    """One query on its way to hits."""

    query: Query | ComposedQuery
    is_visual: bool
    """True if frames are compared."""
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

    ``load_model`` is called when a query needs the model: one for transcripts alone does not;
    ``load_decoder`` when it is a file.
    ``scan`` makes the shortlists on other machines. ``calibration`` gives hits their confidence.
    """

    view: StoreView
    load_model: Callable[[], SearchModel]
    load_decoder: Callable[[], QueryDecoder]
    scan: Scan | None = None
    calibration: Calibration | None = None
    load_encoder: Callable[[], MeaningEncoder] | None = None
    """Called when a text is compared with the meaning of transcripts."""

    @cached_property
    def model(self) -> SearchModel:
        return self.load_model()

    def search(
        self, queries: Sequence[AnyQuery], k: int, options: SearchOptions
    ) -> list[list[Hit]]:
        """Return the k best hits per query."""
        if options.min_confidence and self.calibration is None:
            raise UsageError(
                "confidence was not measured for the model of this store; leave out min_confidence"
            )
        # Queries with dates have filters of their own; all others are searched together.
        groups: dict[DateRange | None, dict[int, Query | ComposedQuery]] = {}
        hits: dict[int, list[Hit]] = {}
        for number, query in enumerate(queries):
            if isinstance(query, TemporalQuery):
                hits[number] = self._search_steps(query, k, options)
            else:
                groups.setdefault(query.dates, {})[number] = query
        for dates, group in groups.items():
            lists = self._search_moments(list(group.values()), k, options.within_dates(dates))
            hits.update(zip(group, lists, strict=True))
        return [hits[number] for number in range(len(queries))]

    def _search_moments(
        self, queries: Sequence[Query | ComposedQuery], k: int, options: SearchOptions
    ) -> list[list[Hit]]:
        has_transcripts = options.has_transcripts and self.view.snapshot.num_lines > 0
        tasks = [self._start(query, options, has_transcripts) for query in queries]
        visual = iter(self._search_frames([task for task in tasks if task.is_visual], k, options))
        return [
            next(visual)
            if task.is_visual
            else make_transcript_hits(self.view.snapshot, task.transcripts, k, options)
            for task in tasks
        ]

    def _start(
        self, query: Query | ComposedQuery, options: SearchOptions, has_transcripts: bool
    ) -> _Task:
        """Rank transcripts, and decide whether frames are compared."""
        snapshot, filters = self.view.snapshot, options.filters
        if isinstance(query, ComposedQuery):
            if "visual" not in options.modalities:
                raise UsageError("a composed query searches in visual only; use a plain text")
            clip_ids = [part.query.clip_id for part in query.parts if part.query.clip_id]
            return _Task(query, is_visual=True, excluded_row=self._row(*clip_ids[:1]))
        is_visual = "visual" in options.modalities
        if query.text is None:
            if not is_visual:
                raise UsageError(
                    "an image, a video or a clip searches in visual only; speech, screen-text and "
                    "descriptions need a text"
                )
            return _Task(query, is_visual=True, excluded_row=self._row(query.clip_id))
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
            meaning=self._meaning(query.transcript),
        )
        return _Task(query, is_visual, query.transcript.plain or query.text, transcripts)

    def _row(self, clip_id: str | None = None) -> int | None:
        """Row of the clip with this id, or the beginning of one."""
        snapshot = self.view.snapshot
        return None if clip_id is None else snapshot.row(snapshot.full_id(clip_id))

    def _meaning(self, query: TranscriptQuery) -> Meaning | None:
        """Vector of a query in the space of the transcript windows.

        None if the store has no windows of this encoder, a phrase must be found word by word, or
        the text is in a language that the encoder does not know.
        """
        if self.load_encoder is None or query.phrases or not self.view.snapshot.encoders:
            return None
        encoder = self.load_encoder()
        if encoder.identity not in self.view.snapshot.encoders or not encoder.reads(query.plain):
            return None
        return Meaning(encoder.identity, encoder.encode([query.plain])[0])

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
        for task in tasks:
            if isinstance(task.query, ComposedQuery):
                texts += [part.query.text for part in task.query.parts if part.query.text]
            else:
                texts += task.query.negatives
        rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        encoded_texts = self.model.encode_texts(list(rows)) if rows else None
        encoded: list[EncodedQuery] = []
        for task in tasks:
            if isinstance(task.query, ComposedQuery):
                parts = [
                    (part.weight, self._encode_part(part.query, rows, encoded_texts))
                    for part in task.query.parts
                ]
                encoded.append(EncodedComposition(parts, self.view.sample[0]))
            elif encoded_texts is not None and task.text:
                own = [rows[text] for text in (task.text, *task.query.negatives)]
                encoded.append(EncodedText(self.model, encoded_texts[own]))
            else:
                example = self.encode_example(task.query)
                encoded.append(EncodedFrames(self.model, example.features))
        return encoded

    def _encode_part(
        self, query: Query, rows: Mapping[str, int], encoded_texts: Any
    ) -> EncodedQuery:
        if query.text is not None:
            return EncodedText(self.model, encoded_texts[[rows[query.text]]])
        return EncodedFrames(self.model, self.encode_example(query).features)

    def encode_example(self, query: Query) -> Example:
        """Encode the image or video of a query, or read the features of its clip."""
        snapshot = self.view.snapshot
        if query.clip_id is not None:
            row = snapshot.row(snapshot.full_id(query.clip_id))
            (clip,) = snapshot.clips([row])
            return Example(self.load(np.array([row])), (clip.start, clip.end))
        clips = self._decode(query)
        # Tensors are arrays too: a user may have decoded the clip in torch.
        frames = np.asarray(clips.frames, np.uint8)
        mask, seconds = np.asarray(clips.mask, bool), np.asarray(clips.seconds, np.float32)
        features = self.model.encode_frames(frames, mask, seconds)
        return Example(features, (0.0, float(seconds[mask].max())))

    def _decode(self, query: Query) -> FrameBatch:
        """Decode the image or video of a query; a file is decoded in a confined process."""
        spec, image = self.view.manifest.frame_spec, query.image_source
        if query.clips is not None:
            return query.clips
        if query.video is None and image is None:
            raise UsageError("expected an image, a video or a clip, not a text")
        if image is not None and not isinstance(image, str | Path):
            from eaglenet.video.inputs import clips_of_image

            return clips_of_image(image, spec)
        decoder = self.load_decoder()
        decoder.start()
        _ = self.model  # Loads while the process starts.
        if query.video is not None:
            return decoder.decode_video(query.video, spec, query.window)
        assert image is not None
        return decoder.decode_image(image, spec)

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
        confidences = self._confidences(query, shortlist, options)
        background = float((self.view.sample[0] @ query.vector).mean()) if len(snapshot) else None
        if not options.rerank and not options.group_files:
            shortlist = shortlist.first(k if options.keep_duplicates else 2 * k)
        num_windows = snapshot.num_windows
        matches = [clip for clip in task.transcripts if clip.is_telling(num_windows)][:size]
        transcripts = {clip.row: clip for clip in matches}
        shortlist = shortlist.with_rows(
            snapshot, query.vector, list(transcripts), query.hubness_weight
        )
        features = self.load(shortlist.rows)
        candidates = Candidates(
            snapshot, shortlist, features, transcripts, confidences, background, self.load
        )
        return _confident(make_hits(candidates, query, k, options), options)

    def _confidences(
        self, query: EncodedQuery, shortlist: Shortlist, options: SearchOptions
    ) -> dict[int, float]:
        """Confidences by row. They are measured for texts without negatives."""
        if isinstance(query, EncodedComposition) and len(query.parts) == 1:
            ((_, query),) = query.parts
        sample, offsets = self.view.sample if self.calibration is not None else (None, None)
        is_measured = isinstance(query, EncodedText) and query.hubness_weight == 1.0
        if self.calibration is None or sample is None or offsets is None or not is_measured:
            return {}
        snapshot = self.view.snapshot
        if str(snapshot.hubness_bank) != self.calibration.hubness:
            return {}
        num_clips = self.num_clips(options)
        if num_clips < options.filters.min_clips:
            return {}
        values = self.calibration.confidences(
            shortlist.cosines,
            mean=float((sample @ query.vector - offsets).mean()),
            num_clips=num_clips,
            files=snapshot.content_ids[shortlist.rows],
        )
        return dict(zip(shortlist.rows.tolist(), values.tolist(), strict=True))

    def _search_steps(self, query: TemporalQuery, k: int, options: SearchOptions) -> list[Hit]:
        """Find files in which the steps follow each other, and rank the steps together."""
        snapshot = self.view.snapshot
        tasks = [self._start(step, options, has_transcripts=False) for step in query.steps]
        encoded = self._encode(tasks)
        shortlists = make_shortlists(
            snapshot,
            np.stack([step.vector for step in encoded]),
            max(STEP_SHORTLIST, options.shortlist_size(k)),
            options.filters,
            self.scan,
            [step.hubness_weight for step in encoded],
            self.view.files if options.filters else None,
        )
        hits = find_sequences(snapshot, query, encoded, shortlists, self.load, k, options)
        confidences = []
        for number, (step, shortlist) in enumerate(zip(encoded, shortlists, strict=True)):
            rows = [snapshot.row(hit.metadata["steps"][number]["clip_id"]) for hit in hits]
            shortlist = shortlist.with_rows(snapshot, step.vector, rows, step.hubness_weight)
            by_row = self._confidences(step, shortlist, options)
            confidences.append([by_row.get(row) for row in rows])
        num_files = self._num_files(options)
        hits = [
            replace(hit, confidence=joint(steps, num_files=num_files))
            for hit, steps in zip(hits, zip(*confidences, strict=True), strict=True)
        ]
        return _confident(hits, options)

    def few_clips_notice(self, query: AnyQuery, hits: Sequence[Hit], options: SearchOptions) -> str:
        """Say that hits have no confidence because few clips were searched; empty if they have.

        Also empty for images, composed queries and texts to avoid, whose hits never have one.
        """
        if not _is_plain(query):
            return ""
        is_missing = any(hit.confidence is None for hit in hits) or bool(options.min_confidence)
        if self.calibration is None or not is_missing:
            return ""
        count, limit = self.num_clips(options.within_dates(query.dates)), options.filters.min_clips
        if not 0 < count < limit:
            return ""
        return f"confidence was not measured for so few clips ({count}; it needs {limit})"

    def num_clips(self, options: SearchOptions) -> int:
        """Number of clips that are searched."""
        snapshot, files = self.view.snapshot, self.view.files
        if not options.filters:
            return len(snapshot)
        allowed = files.ids[options.filters.allowed(files)]
        return int(snapshot.rows_of_contents(allowed).sum())

    def _num_files(self, options: SearchOptions) -> int:
        """Number of files that are searched."""
        if options.filters:
            return int(options.filters.allowed(self.view.files).sum())
        return int(np.count_nonzero(np.bincount(self.view.snapshot.content_ids)))

    def load(self, rows: NDArray[np.int64]) -> ClipFeatures:
        """Read the features of clips."""
        snapshot = self.view.snapshot
        arrays = self.view.manifest.layout.unpack(snapshot.features_at(rows))
        return ClipFeatures(arrays, snapshot.fingerprints(rows))


def _is_plain(query: AnyQuery) -> bool:
    """Return whether a query is a text without negatives, or a sequence of such texts."""
    if isinstance(query, TemporalQuery):
        return all(map(_is_plain, query.steps))
    if isinstance(query, ComposedQuery):
        return len(query.parts) == 1 and _is_plain(query.parts[0].query)
    return query.text is not None and not query.negatives


def _confident(hits: list[Hit], options: SearchOptions) -> list[Hit]:
    """Hits with at least the confidence of the options; those without any are left out."""
    if not options.min_confidence:
        return hits
    return [hit for hit in hits if (hit.confidence or 0.0) >= options.min_confidence]
