"""The engine: shortlist by coarse vector, exact re-rank, and the moment in each hit."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.errors import StoreError, UsageError, VideoDecodeError
from eaglenet.hardware import AUTO
from eaglenet.methods.base import Method
from eaglenet.methods.head import head_folder, with_head
from eaglenet.places import default_store
from eaglenet.search.approximate import Scan, coded_shortlists, is_scanned, way_of
from eaglenet.search.choosing import Candidates
from eaglenet.search.filters import Filters
from eaglenet.search.hits import (
    CaptionHit,
    Explanation,
    explain_clip,
    first_existing,
    make_hits,
    rank_captions,
    word_hits,
)
from eaglenet.search.models import keep_text_tower, model_identity, put_on, require_model
from eaglenet.search.options import SearchOptions, checked_count
from eaglenet.search.queries import (
    FrameQuery,
    Query,
    TextQuery,
    clean_queries,
    clean_query,
    encode_sentences,
)
from eaglenet.search.reranking import Reranker
from eaglenet.search.shortlist import Shortlist, exact_shortlists
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.words import WordIndex
from eaglenet.search.view import View
from eaglenet.search.words.fusion import LEAST
from eaglenet.search.words.question import WordQuery, parse, why_no_line
from eaglenet.search.words.ranking import ClipWords, rank_clips
from eaglenet.types import Clips, Hit, VideoFeatures
from eaglenet.video.inputs import clips_of_image, clips_of_video

if TYPE_CHECKING:
    from PIL.Image import Image


class Engine:
    """Searches one store. Safe to use from several threads; sees what a writer publishes."""

    def __init__(
        self,
        store: Store,
        *,
        model: str | Path | Method | None = None,
        device: torch.device | str = AUTO,
        scan: Scan | None = None,
    ) -> None:
        """``scan``: who makes the shortlists, where this machine does not."""
        self._scan = scan
        self._model = model
        self._device = device
        self._lock = threading.RLock()
        self._loaded: tuple[str, Method, Reranker] | None = None
        self._view = View.of(store)

    @classmethod
    def open(
        cls,
        store: str | Path | None = None,
        model: str | Path | Method | None = None,
        device: torch.device | str = AUTO,
    ) -> Engine:
        """Open a store for searching; reads neither the model nor the vectors yet.

        ``store`` None: that of ``EAGLENET_STORE``, or the one in the user's data folder. ``model``
        is only needed where the folder the store was made with has moved. ``device`` ``auto``
        takes a GPU where there is one; a model that is handed over stays where it is.
        """
        return cls(open_store(store or default_store()), model=model, device=device)

    @property
    def location(self) -> str:
        """Where the store is."""
        return self._view.store.location

    @property
    def manifest(self) -> Manifest:
        """What the store was made with."""
        return self._now().manifest

    @property
    def snapshot(self) -> Snapshot:
        """The newest published version; a search holds on to the one it began with."""
        return self._now().snapshot

    @property
    def method(self) -> Method:
        """The model, loaded on first use and checked to be the one the store was made with."""
        return self._model_of(self._now())[0]

    @property
    def reranker(self) -> Reranker:
        """The exact scorer of the model."""
        return self._model_of(self._now())[1]

    @property
    def missing(self) -> tuple[str, ...]:
        """Parts of the store that answers are without now, in words; see ``scan``."""
        return self._scan.missing if self._scan is not None else ()

    def _now(self) -> View:
        """The store as it is now: read again where it was published to, or replaced by another."""
        try:
            stamp = self._view.store.stamp()
        except OSError:
            return self._view  # The store went away; what is open can still be searched.
        if stamp != self._view.stamp:
            with self._lock:
                if stamp != self._view.stamp:
                    self._view = self._view.renewed()
        return self._view

    def _model_of(self, view: View) -> tuple[Method, Reranker]:
        """The model a store was made with; another one where the store was replaced."""
        identity = view.manifest.identity
        with self._lock:
            if self._loaded is None or self._loaded[0] != identity:
                method = self._load_method(view.store)
                self._loaded = identity, method, Reranker(method)
            return self._loaded[1:]

    def _load_method(self, store: Store) -> Method:
        manifest = store.manifest
        given = self._model if self._model is not None else manifest.model
        method = given
        if not isinstance(method, Method):
            from eaglenet.methods.folder import load

            if self._model is None:
                require_model(store)
            method = load(str(given))
        if model_identity(method) != manifest.identity:
            name = given.name if isinstance(given, Method) else str(given)
            raise StoreError(
                f"{store.location} was made with another model than {name!r}: their vectors cannot "
                f"be compared. Open it with {manifest.model!r}, or index the videos into a "
                "new store"
            )
        method.eval()
        # A head beside the model ranks shortlists; the store's vectors are those of its towers.
        place = None if isinstance(given, Method) else head_folder(str(given))
        if place is not None:
            method = with_head(method, place)
        if self._device != AUTO or not isinstance(given, Method):
            method = put_on(method, self._device)
        if not isinstance(given, Method):
            keep_text_tower(method, str(given))
        return method

    def warm_up(self) -> None:
        """Load the model and the vectors and run one query, so that the next one is fast."""
        _ = self.method
        if len(self.snapshot):
            self.search("warm up", k=1)

    def search(
        self, query: str, k: int = 10, *, options: SearchOptions | None = None, **changes: Any
    ) -> list[Hit]:
        """The k best moments for a sentence, best first.

        ``changes`` are options by name, those of filters too: ``shortlist=50, path="*.mp4"``; see
        :class:`SearchOptions` and :class:`Filters`.
        """
        return self.search_many([query], k, options=options, **changes)[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> list[list[Hit]]:
        """:meth:`search` for several sentences: encoded and shortlisted together."""
        options = (options or SearchOptions()).changed(changes)
        k = checked_count(k)
        cleaned = clean_queries(queries)
        if not cleaned:
            return []
        asked = [parse(sentence) for sentence in cleaned]
        view = self._now()
        index = view.words.now() if options.searches_words else None
        words = [self._clip_words(view, index, query, options) for query in asked]
        results: list[list[Hit]] = [word_hits(view.snapshot, found, k, options) for found in words]
        # Nothing is seen of what is only quoted, unless pictures are all there is to search.
        is_seen = [
            "pictures" in options.parts and (index is None or not query.is_quoted)
            for query in asked
        ]
        places = [place for place, seen in enumerate(is_seen) if seen]
        sentences = [
            cleaned[place] if index is None else asked[place].plain or cleaned[place]
            for place in places
        ]
        found = self._by_sentences(view, sentences, k, options, [words[place] for place in places])
        for place, hits in zip(places, found, strict=True):
            results[place] = hits
        return results

    def _clip_words(
        self, view: View, index: WordIndex | None, query: WordQuery, options: SearchOptions
    ) -> list[ClipWords]:
        """Clips whose words fit a query, best first."""
        if index is None:
            return []
        filters, snapshot = options.filters, view.snapshot
        return rank_clips(
            index,
            query,
            snapshot,
            options.parts,
            allowed=filters.allowed(snapshot.files) if filters else None,
            negatives=[parse(phrase) for phrase in options.negatives],
        )

    def _by_sentences(
        self,
        view: View,
        sentences: Sequence[str],
        k: int,
        options: SearchOptions,
        words: Sequence[Sequence[ClipWords]],
    ) -> list[list[Hit]]:
        """By pictures, and with the words that were found for each sentence."""
        if not sentences:
            return []
        method, reranker = self._model_of(view)
        away = options.negatives
        features = encode_sentences(method, [*sentences, *away])
        first_away = len(sentences)
        rows = list(range(first_away, first_away + len(away)))
        asked = [TextQuery(reranker, features[[number, *rows]]) for number in range(first_away)]
        sure = [[clip for clip in each if clip.coverage >= LEAST] for each in words]
        return self._find(view, asked, k, options, words=sure)

    def search_video(
        self,
        video: str | Path,
        k: int = 10,
        *,
        window: tuple[float, float] | None = None,
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> list[Hit]:
        """Clips that look like a video file (or its ``window`` in seconds), or like a clip id."""
        if isinstance(video, str) and video in self:
            return self.similar(video, k, options=options, **changes)
        options = _of_frames(options, changes)
        view = self._now()
        clips = clips_of_video(Path(video), view.manifest.frame_spec, window)
        return self._find(view, [self._frame_query(view, clips)], k, options)[0]

    def search_image(
        self,
        image: str | Path | Image,
        k: int = 10,
        *,
        options: SearchOptions | None = None,
        **changes: Any,
    ) -> list[Hit]:
        """Clips that show what an image shows: a file, or an image of Pillow."""
        clips = clips_of_image(image, self.manifest.frame_spec)
        return self.search_frames(clips, k, options=options, **changes)

    def search_frames(
        self, clips: Clips, k: int = 10, *, options: SearchOptions | None = None, **changes: Any
    ) -> list[Hit]:
        """Clips that look like one that is decoded already."""
        options = _of_frames(options, changes)
        view = self._now()
        return self._find(view, [self._frame_query(view, clips)], k, options)[0]

    def similar(
        self, clip_id: str, k: int = 10, *, options: SearchOptions | None = None, **changes: Any
    ) -> list[Hit]:
        """Clips that look like a clip of the store, without that clip itself."""
        options = _of_frames(options, changes)
        view = self._now()
        clips = self._stored(view, np.array([view.snapshot.row(clip_id)]))
        query = FrameQuery(self._model_of(view)[0], clips.features)
        return self._find(view, [query], k, options, without=clip_id)[0]

    def _frame_query(self, view: View, clips: Clips) -> FrameQuery:
        return FrameQuery(self._model_of(view)[0], self._encode(view, clips))

    @torch.no_grad()
    def best_captions(
        self, video: str | Path, captions: Sequence[str], k: int = 10
    ) -> list[CaptionHit]:
        """The captions that fit a video file or a clip id best (video-to-text)."""
        if not captions:
            raise UsageError("no captions were given; give at least one")
        k = checked_count(k)
        view = self._now()
        if isinstance(video, str) and video in view.snapshot:
            row = view.snapshot.row(video)
            stored = self._stored(view, np.array([row]))
            features, seconds = stored.features, stored.seconds
            start, end = view.snapshot.span(row)
        else:
            clips = clips_of_video(Path(video), view.manifest.frame_spec, None)
            features, seconds = self._encode(view, clips), clips.seconds
            start, end = 0.0, float(clips.seconds[clips.mask].max())
        method = self._model_of(view)[0]
        return rank_captions(method, features, seconds[0], (start, end), captions, k)

    @torch.no_grad()
    def explain(self, query: str, clip_id: str, negatives: Sequence[str] = ()) -> Explanation:
        """The scores of one clip for a sentence, frame by frame."""
        sentences = [clean_query(query), *clean_queries(negatives)]
        view = self._now()
        method, reranker = self._model_of(view)
        asked = TextQuery(reranker, encode_sentences(method, sentences))
        row = view.snapshot.row(clip_id)
        return explain_clip(view.snapshot, asked, row, self._stored(view, np.array([row])))

    def __contains__(self, clip_id: object) -> bool:
        return clip_id in self.snapshot

    def thumbnail(self, clip_id: str) -> bytes:
        """A small JPEG of the middle of a clip."""
        snapshot = self.snapshot
        return snapshot.thumbnail(snapshot.row(clip_id))

    def picture(self, clip_id: str, seconds: float, size: int = 240) -> bytes:
        """JPEG of the whole frame at a moment, its shorter side ``size``.

        Where the file is gone or does not decode, it is the thumbnail.
        """
        from eaglenet.video.decoding import thumbnail

        try:
            return thumbnail(self.file_of(clip_id), seconds, size)
        except (VideoDecodeError, OSError):
            return self.thumbnail(clip_id)

    def short_id(self, clip_id: str) -> str:
        """The shortest beginning of a clip's id that no clip of another file has."""
        return self.snapshot.short_id(clip_id)

    def full_id(self, text: str) -> str:
        """The id of the clip that a short one stands for."""
        return self.snapshot.full_id(text)

    def file_of(self, clip_id: str) -> Path:
        """The file a clip is in; of several with the same content, the first that exists."""
        snapshot = self.snapshot
        paths = snapshot.files.paths[int(snapshot.columns["file_number"][snapshot.row(clip_id)])]
        return Path(first_existing(paths))

    def span_of(self, clip_id: str) -> tuple[float, float]:
        """First and last second of a clip in its file."""
        snapshot = self.snapshot
        return snapshot.span(snapshot.row(clip_id))

    def info(self) -> dict[str, Any]:
        """What is in the store and how it is searched."""
        view = self._now()
        snapshot, manifest = view.snapshot, view.manifest
        return {
            "store": self.location,
            "clips": len(snapshot),
            "files": sum(len(paths) for paths in snapshot.files.paths),
            "contents": len(snapshot.files),
            "hours": float(snapshot.files.durations.sum()) / 3600,
            "model": manifest.model,
            "method": manifest.method,
            "identity": manifest.identity,
            "dim": manifest.dim,
            "frames": manifest.layout.num_frames,
            "index": way_of(snapshot),
            "version": snapshot.version,
            "roots": list(manifest.roots),
            "tags": sorted({tag for tags in snapshot.files.tags for tag in tags}),
            "lines": index.count() if (index := view.words.now()) is not None else 0,
        }

    def why_empty(self, options: SearchOptions, sentence: str = "") -> str:
        """Why nothing was found, in words: a filter that leaves no clip, or what no line says."""
        view = self._now()
        reason = options.filters.why_empty(view.snapshot.files)
        if reason or not sentence or not len(view.snapshot):
            return reason
        index = view.words.now()
        return why_no_line(parse(sentence), options.parts, 0 if index is None else index.count())

    def shortlists(
        self, queries: Tensor, k: int, filters: Filters | None = None
    ) -> tuple[Snapshot, list[Shortlist]]:
        """Rows of the k nearest clips of each vector ``[queries, dim]``, as the store does it."""
        view = self._now()
        return view.snapshot, self._shortlists(view, queries, k, filters)

    def _shortlists(
        self, view: View, queries: Tensor, k: int, filters: Filters | None
    ) -> list[Shortlist]:
        snapshot = view.snapshot
        if self._scan is not None:
            return self._scan.shortlists(snapshot, queries, k, filters)
        allowed = snapshot.rows_of(filters.allowed(snapshot.files)) if filters else None
        if allowed is not None and allowed.all():
            allowed = None
        if is_scanned(snapshot):
            return exact_shortlists(snapshot, queries, k, allowed)
        return coded_shortlists(snapshot, queries, k, allowed)

    @torch.no_grad()
    def _find(
        self,
        view: View,
        queries: Sequence[Query],
        k: int,
        options: SearchOptions,
        without: str | None = None,
        words: Sequence[Sequence[ClipWords]] | None = None,
    ) -> list[list[Hit]]:
        k = checked_count(k)
        # One more, because the clip that was asked with is taken out again.
        width = options.width(k) + (without is not None)
        vectors = torch.stack([query.coarse.float().cpu() for query in queries])
        snapshot = view.snapshot
        found = self._shortlists(view, vectors, width, options.filters)
        if without is not None:
            found = [each.without(snapshot.row(without)) for each in found]
        results = []
        for number, (query, each) in enumerate(zip(queries, found, strict=True)):
            if not options.rerank and not options.group_files:
                each = each.first(2 * k if options.fold else k)
            said = {clip.row: clip for clip in (words[number][:width] if words else ())}
            each = each.extended(snapshot, vectors[number], list(said))
            clips = self._stored(view, each.rows)
            if options.rerank and isinstance(query, TextQuery):
                clips = query.reranker.prepared(clips, snapshot.names(each.rows))
            candidates = Candidates(snapshot, each, clips, said)
            results.append(make_hits(candidates, query, k, options))
        return results

    def _stored(self, view: View, rows: NDArray[np.int64]) -> StoredClips:
        device = self._model_of(view)[0].device
        return view.manifest.layout.unpack(view.snapshot.records(rows), device)

    @torch.no_grad()
    def _encode(self, view: View, clips: Clips) -> VideoFeatures:
        method = self._model_of(view)[0]
        return method.encode_video(clips.to(method.device))


def _of_frames(options: SearchOptions | None, changes: Mapping[str, Any]) -> SearchOptions:
    options = (options or SearchOptions()).changed(changes)
    if "pictures" not in options.parts:
        raise UsageError("a picture or video finds pictures; speech and text need words to ask for")
    if options.negatives:
        raise UsageError("phrases to keep away from go with sentences, not with a picture or video")
    return options


def open(
    store: str | Path | None = None,
    model: str | Path | Method | None = None,
    device: torch.device | str = AUTO,
) -> Engine:
    """``eaglenet.open``: see :meth:`Engine.open`."""
    return Engine.open(store, model, device)
