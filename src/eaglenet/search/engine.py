"""The engine: shortlist by coarse vector, exact re-rank, and the moment in each hit."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eaglenet.core.errors import UsageError, VideoDecodeError
from eaglenet.core.hardware import AUTO
from eaglenet.core.platform import default_store
from eaglenet.core.types import Clips, Hit
from eaglenet.methods.base import Method
from eaglenet.search.filters import Filters
from eaglenet.search.hits import (
    CaptionHit,
    Explanation,
    explain_clip,
    first_existing,
    rank_captions,
    word_hits,
)
from eaglenet.search.model import load_for_search
from eaglenet.search.options import SearchOptions, checked_count
from eaglenet.search.query import TextQuery, clean_queries, clean_query, encode_sentences
from eaglenet.search.reranking import Reranker
from eaglenet.search.retrieval import Finder, View, clip_words
from eaglenet.search.shortlist import Scan, Shortlist, shortlists_of
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.transcripts import parse, why_no_line
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
                method = load_for_search(view.store, self._model, self._device)
                self._loaded = identity, method, Reranker(method)
            return self._loaded[1:]

    def _finder(self, view: View) -> Finder:
        method, reranker = self._model_of(view)
        return Finder(view, method, reranker, self._scan)

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
        words = [clip_words(view, index, query, options) for query in asked]
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
        if sentences:
            said = [words[place] for place in places]
            found = self._finder(view).by_sentences(sentences, k, options, said)
            for place, hits in zip(places, found, strict=True):
                results[place] = hits
        return results

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
        return self._finder(view).by_frames(clips, k, options)

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
        return self._finder(view).by_frames(clips, k, options)

    def similar(
        self, clip_id: str, k: int = 10, *, options: SearchOptions | None = None, **changes: Any
    ) -> list[Hit]:
        """Clips that look like a clip of the store, without that clip itself."""
        options = _of_frames(options, changes)
        view = self._now()
        row = view.snapshot.row(clip_id)
        return self._finder(view).like_row(row, k, options)

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
            stored = self._finder(view).stored(row)
            features, seconds = stored.features, stored.seconds
            start, end = view.snapshot.span(row)
        else:
            clips = clips_of_video(Path(video), view.manifest.frame_spec, None)
            features, seconds = self._finder(view).encode(clips), clips.seconds
            start, end = 0.0, float(clips.seconds[clips.mask].max())
        method = self._model_of(view)[0]
        return rank_captions(method, features, seconds[0], (start, end), captions, k)

    @torch.no_grad()
    def explain(self, query: str, clip_id: str, negatives: Sequence[str] = ()) -> Explanation:
        """The scores of one clip for a sentence, frame by frame."""
        sentences = [clean_query(query), *clean_queries(negatives)]
        view = self._now()
        finder = self._finder(view)
        asked = TextQuery(finder.reranker, encode_sentences(finder.method, sentences))
        row = view.snapshot.row(clip_id)
        return explain_clip(view.snapshot, asked, row, finder.stored(row))

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
        return self._now().info()

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
        snapshot = self.snapshot
        return snapshot, shortlists_of(snapshot, queries, k, filters, self._scan)


def _of_frames(options: SearchOptions | None, changes: Mapping[str, Any]) -> SearchOptions:
    options = (options or SearchOptions()).changed(changes)
    if "pictures" not in options.parts:
        raise UsageError("a picture or a video only searches pictures; speech and text need words")
    if options.negatives:
        raise UsageError("negative phrases work with sentences only, not with a picture or a video")
    return options


def open(
    store: str | Path | None = None,
    model: str | Path | Method | None = None,
    device: torch.device | str = AUTO,
) -> Engine:
    """``eaglenet.open``: see :meth:`Engine.open`."""
    return Engine.open(store, model, device)
