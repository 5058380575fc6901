"""Retrieval: turns queries into hits, for one version of a store and its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eaglenet.core.errors import UsageError
from eaglenet.models.light_model import MeaningEncoder
from eaglenet.search.confidence import SAMPLE_SIZE, Calibration
from eaglenet.search.dates import DateRange
from eaglenet.search.grammar import AnyQuery, ComposedQuery, TemporalQuery
from eaglenet.search.hit import Hit
from eaglenet.search.hits import make_hits, make_transcript_hits
from eaglenet.search.model import ClipFeatures, SearchModel
from eaglenet.search.options import MAX_RESULTS, SearchOptions
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
from eaglenet.store.object_storage import outermost
from eaglenet.store.records import FileTable
from eaglenet.store.snapshot import Snapshot

if TYPE_CHECKING:
    from eaglenet.video.frame_images import QueryDecoder
    from eaglenet.video.inputs import FrameBatch


@dataclass(frozen=True)
class StoreView:
    """One version of a store; a search uses one view from start to end."""

    store: Store
    snapshot: Snapshot

    @property
    def location(self) -> str:
        return self.store.location

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
        """Vectors and hubness offsets of some evenly spaced clips."""
        snapshot = self.snapshot
        rows = snapshot.visible_rows()
        rows = rows[spaced_indices(len(rows), SAMPLE_SIZE)]
        offsets = snapshot.hubness_offsets
        return snapshot.vectors_at(rows), None if offsets is None else offsets[rows]

    def info(self) -> dict[str, Any]:
        """Return facts about the store and how it is searched."""
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
            "moment_seconds": manifest.moment_seconds,
            "index": scan_name(snapshot),
            "hubness": "off" if bank is None else str(bank),
            "snapshot": snapshot.version,
            "folders": outermost(manifest.roots),
            "tags": sorted({tag for tags in self.files.tags for tag in tags}),
            "transcript_lines": snapshot.num_lines,
            "files_with_date": int(np.isfinite(self.files.recording_times).sum()),
            "files_with_place": int(np.isfinite(self.files.latitudes).sum()),
            "files_with_unread_metadata": self.files.cameras.count(None),
        }


@dataclass(frozen=True)
class _Task:
    """A query, prepared for the comparison of frames."""

    query: Query | ComposedQuery
    is_visual: bool
    """True if frames are compared."""
    text: str = ""
    """Text to encode; empty for an image, a video or a clip."""
    transcripts: Sequence[ClipTranscript] = ()
    """Clips with matching transcripts, best first."""
    examples: tuple[int, ...] = ()
    """Rows of the clips that are examples to search with."""


@dataclass(frozen=True)
class Example:
    """Features of an image, a video or a clip, and its span in seconds."""

    features: ClipFeatures
    span: tuple[float, float]


@dataclass(frozen=True)
class Retriever:
    """Search of one view of a store.

    load_model: called when a query needs the model, as all but searches in transcripts do.
    load_decoder: called when a query is a file.
    scan: makes the shortlists on other machines.
    calibration: gives hits their confidence.
    load_encoder: called when a text is compared with transcripts by meaning.
    """

    view: StoreView
    load_model: Callable[[], SearchModel]
    load_decoder: Callable[[], QueryDecoder]
    scan: Scan | None = None
    calibration: Calibration | None = None
    load_encoder: Callable[[], MeaningEncoder] | None = None

    @cached_property
    def model(self) -> SearchModel:
        return self.load_model()

    def search(
        self, queries: Sequence[AnyQuery], k: int, options: SearchOptions
    ) -> list[list[Hit]]:
        """Return the k best hits per query."""
        if options.min_confidence and self.calibration is None:
            raise UsageError(
                "confidence was not measured for the model of this store; remove min_confidence"
            )
        # Queries with equal dates have equal filters, and are searched together.
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
        tasks = [self._make_task(query, options, has_transcripts) for query in queries]
        visual_hits = iter(
            self._search_frames([task for task in tasks if task.is_visual], k, options)
        )
        return [
            next(visual_hits)
            if task.is_visual
            else make_transcript_hits(self.view.snapshot, task.transcripts, k, options)
            for task in tasks
        ]

    def _make_task(
        self, query: Query | ComposedQuery, options: SearchOptions, has_transcripts: bool
    ) -> _Task:
        """Rank transcripts for a query, and decide whether to compare frames."""
        snapshot, filters = self.view.snapshot, options.filters
        if isinstance(query, ComposedQuery):
            if "visual" not in options.modalities:
                raise UsageError(
                    "a composed query searches frames only; search in visual, too, or use a plain "
                    "text"
                )
            clip_ids = [part.query.clip_id for part in query.parts if part.weight > 0]
            return _Task(query, is_visual=True, examples=self._rows(clip_ids))
        is_visual = "visual" in options.modalities
        if query.text is None:
            if not is_visual:
                raise UsageError(
                    "an image, a video or a clip searches frames only; search in visual, too, "
                    "or use a text"
                )
            return _Task(query, is_visual=True, examples=self._rows([query.clip_id]))
        if not has_transcripts or query.transcript is None:
            return _Task(query, is_visual, query.text)
        # A phrase in quotation marks is searched for in transcripts only.
        is_visual = is_visual and not query.transcript.has_only_phrases
        content_ids = None
        if filters:
            content_ids = self.view.files.ids[filters.matches(self.view.files)].tolist()
        transcripts = rank_clips(
            snapshot,
            query.transcript,
            options.modalities,
            content_ids=content_ids,
            negatives=[TranscriptQuery.parse(text) for text in query.negatives],
            # With frames, a word that is in no transcript often describes what they show.
            corrects_spelling=not is_visual,
            meaning=self._meaning(query.transcript),
        )
        return _Task(query, is_visual, query.transcript.plain or query.text, transcripts)

    def _rows(self, clip_ids: Sequence[str | None]) -> tuple[int, ...]:
        """Return the rows of the clips with these ids or prefixes of ids."""
        return tuple(self.view.snapshot.row(clip_id) for clip_id in clip_ids if clip_id)

    def _meaning(self, query: TranscriptQuery) -> Meaning | None:
        """Return the vector of a query for comparison with windows of transcript lines.

        None if the store has no windows of this encoder, if the query has a phrase in quotation
        marks, or if the encoder does not know its language.
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
        """Compare frames with all queries; their texts are encoded in one batch."""
        if not tasks:
            return []
        encoded_queries = self._encode(tasks)
        size = options.shortlist_size(k)
        # Shortlists are longer by the clips that are removed afterwards; queries with equal lengths
        # are compared together, so that no query depends on the others.
        groups: dict[int, list[int]] = {}
        for number, task in enumerate(tasks):
            groups.setdefault(self._num_clips_beside(task.examples), []).append(number)
        shortlists: dict[int, Shortlist] = {}
        for num_removed, numbers in groups.items():
            queries = [encoded_queries[number] for number in numbers]
            lists = self._make_shortlists(queries, size + num_removed, options)
            shortlists.update(zip(numbers, lists, strict=True))
        results = []
        for number, (task, query) in enumerate(zip(tasks, encoded_queries, strict=True)):
            shortlist = shortlists[number]
            if task.examples:
                shortlist = self._without_examples(shortlist, task.examples)
            results.append(self._rank(task, query, shortlist.first(size), k, options))
        return results

    def _num_clips_beside(self, rows: Sequence[int]) -> int:
        """Return the number of clips in the files of some rows, up to ``MAX_RESULTS``."""
        if not rows:
            return 0
        contents = self.view.snapshot.content_ids
        return min(int(np.isin(contents, contents[list(rows)]).sum()), MAX_RESULTS)

    def _without_examples(self, shortlist: Shortlist, rows: Sequence[int]) -> Shortlist:
        """Leave out the files of the example clips, whose other clips look alike.

        If no clip would remain, leave out the example clips only.
        """
        contents = self.view.snapshot.content_ids
        is_beside = np.isin(contents[shortlist.rows], contents[list(rows)])
        if is_beside.all():
            is_beside = np.isin(shortlist.rows, rows)
        return shortlist.where(~is_beside)

    def _make_shortlists(
        self, queries: Sequence[EncodedQuery], size: int, options: SearchOptions
    ) -> list[Shortlist]:
        return make_shortlists(
            self.view.snapshot,
            np.stack([query.vector for query in queries]),
            size,
            options.filters,
            self.scan,
            [query.hubness_weight for query in queries],
            self.view.files if options.filters else None,
        )

    def _encode(self, tasks: Sequence[_Task]) -> list[EncodedQuery]:
        texts = [task.text for task in tasks if task.text]
        for task in tasks:
            if isinstance(task.query, ComposedQuery):
                texts += [part.query.text for part in task.query.parts if part.query.text]
            else:
                texts += task.query.negatives
        indices = {text: index for index, text in enumerate(dict.fromkeys(texts))}
        encoded_texts = self.model.encode_texts(list(indices)) if indices else None
        encoded_queries: list[EncodedQuery] = []
        for task in tasks:
            if isinstance(task.query, ComposedQuery):
                parts = [
                    (part.weight, self._encode_part(part.query, indices, encoded_texts))
                    for part in task.query.parts
                ]
                encoded_queries.append(EncodedComposition(parts, self.view.sample[0]))
            elif encoded_texts is not None and task.text:
                numbers = [indices[text] for text in (task.text, *task.query.negatives)]
                encoded_queries.append(EncodedText(self.model, encoded_texts[numbers]))
            else:
                example = self.encode_example(task.query)
                encoded_queries.append(EncodedFrames(self.model, example.features))
        return encoded_queries

    def _encode_part(
        self, query: Query, indices: Mapping[str, int], encoded_texts: Any
    ) -> EncodedQuery:
        if query.text is not None:
            return EncodedText(self.model, encoded_texts[[indices[query.text]]])
        return EncodedFrames(self.model, self.encode_example(query).features)

    def encode_example(self, query: Query) -> Example:
        """Encode the image or video of a query, or read the features of its clip."""
        snapshot = self.view.snapshot
        if query.clip_id is not None:
            row = snapshot.row(query.clip_id)
            (clip,) = snapshot.clips([row])
            return Example(self.load(np.array([row])), (clip.start, clip.end))
        clips = self._decode(query)
        # Also converts tensors: a user may have decoded the clip with torch.
        frames = np.asarray(clips.frames, np.uint8)
        mask, seconds = np.asarray(clips.mask, bool), np.asarray(clips.seconds, np.float32)
        features = self.model.encode_frames(frames, mask, seconds)
        return Example(features, (0.0, float(seconds[mask].max())))

    def _decode(self, query: Query) -> FrameBatch:
        """Decode the image or video of a query; files are decoded in a sandboxed process."""
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
        _ = self.model  # Load the model while the process starts.
        if query.video is not None:
            return decoder.decode_video(query.video, spec, query.window)
        assert image is not None
        return decoder.decode_image(image, spec)

    def _rank(
        self, task: _Task, query: EncodedQuery, shortlist: Shortlist, k: int, options: SearchOptions
    ) -> list[Hit]:
        """Rank a shortlist together with the clips whose transcripts match best."""
        snapshot, size = self.view.snapshot, options.shortlist_size(k)
        confidences = self._confidences(query, shortlist, options)
        background = float((self.view.sample[0] @ query.vector).mean()) if len(snapshot) else None
        if not options.rerank and not options.group_files:
            shortlist = shortlist.first(k if options.keep_duplicates else 2 * k)
        num_windows = snapshot.num_windows
        matches = [clip for clip in task.transcripts if clip.is_significant(num_windows)][:size]
        transcripts = {clip.row: clip for clip in matches}
        shortlist = shortlist.with_rows(
            snapshot, query.vector, list(transcripts), query.hubness_weight
        )
        features = self.load(shortlist.rows)
        candidates = Candidates(
            snapshot, shortlist, features, transcripts, confidences, background, self.load
        )
        return _filter_by_confidence(make_hits(candidates, query, k, options), options)

    def _confidences(
        self, query: EncodedQuery, shortlist: Shortlist, options: SearchOptions
    ) -> dict[int, float]:
        """Return confidences by row; only texts without negatives have any."""
        mean = self._mean_score(query, options)
        if self.calibration is None or mean is None:
            return {}
        values = self.calibration.confidences(
            shortlist.cosines,
            mean=mean,
            num_clips=self.num_clips(options),
            files=self.view.snapshot.content_ids[shortlist.rows],
        )
        return dict(zip(shortlist.rows.tolist(), values.tolist(), strict=True))

    def _mean_score(self, query: EncodedQuery, options: SearchOptions) -> float | None:
        """Return the mean score of a sample of clips; None if hits cannot have a confidence."""
        if isinstance(query, EncodedComposition) and len(query.parts) == 1:
            ((_, query),) = query.parts
        if self.calibration is None or not isinstance(query, EncodedText):
            return None
        sample, offsets = self.view.sample
        if offsets is None or not self._has_offsets or query.hubness_weight != 1.0:
            return None
        if self.num_clips(options) < options.filters.min_clips:
            return None
        return float((sample @ query.vector - offsets).mean())

    def _sequence_rating(
        self, steps: Sequence[EncodedQuery], options: SearchOptions
    ) -> Callable[[NDArray[np.float64]], NDArray[np.float64]] | None:
        """Return a function from summed scores of sequences to confidences; None: none have any."""
        means = [self._mean_score(step, options) for step in steps]
        known_means = [mean for mean in means if mean is not None]
        is_measured = self.calibration is not None and self.calibration.sequences
        if self.calibration is None or not is_measured or len(known_means) < len(means):
            return None
        return partial(
            self.calibration.sequence_confidences,
            mean=sum(known_means),
            num_files=self._num_files(options),
        )

    def _search_steps(self, query: TemporalQuery, k: int, options: SearchOptions) -> list[Hit]:
        """Rank files in which the steps follow each other."""
        snapshot = self.view.snapshot
        tasks = [self._make_task(step, options, has_transcripts=False) for step in query.steps]
        encoded_steps = self._encode(tasks)
        size = max(STEP_SHORTLIST, options.shortlist_size(k))
        shortlists = self._make_shortlists(encoded_steps, size, options)
        rate = self._sequence_rating(encoded_steps, options)
        hits = find_sequences(
            snapshot, query, encoded_steps, shortlists, self.load, k, options, rate
        )
        return _filter_by_confidence(hits, options)

    def few_clips_notice(self, query: AnyQuery, hits: Sequence[Hit], options: SearchOptions) -> str:
        """Return a notice if too few clips were searched for a confidence, else ``""``.

        A sequence needs as many files as other queries need clips. There is no notice for images,
        composed queries and texts with negatives, whose hits never have a confidence.
        """
        if not can_have_confidence(query):
            return ""
        is_missing = any(hit.confidence is None for hit in hits) or bool(options.min_confidence)
        if self.calibration is None or not is_missing:
            return ""
        limit = options.filters.min_clips
        options = options.within_dates(query.dates)
        is_sequence = isinstance(query, TemporalQuery)
        count = self._num_files(options) if is_sequence else self.num_clips(options)
        if 0 < count < limit:
            noun = "files" if is_sequence else "clips"
            return f"confidence was not measured for so few {noun} ({count}; it needs {limit})"
        if isinstance(query, TemporalQuery) and self._has_offsets and self.calibration.sequences:
            # Hits with a confidence may have been left out for a low one.
            sequences = hits or self._search_steps(query, 1, replace(options, min_confidence=0.0))
            if any(hit.confidence is None for hit in sequences):
                return f"confidence was not measured: fewer than {limit} files have such a sequence"
        return ""

    @property
    def _has_offsets(self) -> bool:
        """True if the store has the hubness offsets that the calibration was fitted with."""
        has_bank = self.view.sample[1] is not None
        bank = str(self.view.snapshot.hubness_bank)
        return has_bank and self.calibration is not None and bank == self.calibration.hubness

    def num_clips(self, options: SearchOptions) -> int:
        """Return the number of clips that are searched."""
        snapshot, files = self.view.snapshot, self.view.files
        if not options.filters:
            return len(snapshot)
        mask = snapshot.rows_of_contents(files.ids[options.filters.matches(files)])
        return int((mask if snapshot.visible is None else mask & snapshot.visible).sum())

    def _num_files(self, options: SearchOptions) -> int:
        """Return the number of files that are searched."""
        if options.filters:
            return int(options.filters.matches(self.view.files).sum())
        snapshot = self.view.snapshot
        return len(np.unique(snapshot.content_ids[snapshot.visible_rows()]))

    def load(self, rows: NDArray[np.int64]) -> ClipFeatures:
        """Read the features of clips."""
        snapshot = self.view.snapshot
        arrays = self.view.manifest.layout.unpack(snapshot.features_at(rows))
        return ClipFeatures(arrays, snapshot.fingerprints(rows))


def can_have_confidence(query: AnyQuery) -> bool:
    """Return whether a query is a text without negatives, or a sequence of such texts."""
    if isinstance(query, TemporalQuery):
        return all(map(can_have_confidence, query.steps))
    if isinstance(query, ComposedQuery):
        return len(query.parts) == 1 and can_have_confidence(query.parts[0].query)
    return query.text is not None and not query.negatives


def _filter_by_confidence(hits: list[Hit], options: SearchOptions) -> list[Hit]:
    """Leave out hits with less than ``min_confidence``, and those without a confidence."""
    if not options.min_confidence:
        return hits
    return [hit for hit in hits if (hit.confidence or 0.0) >= options.min_confidence]
