"""The engine: shortlist by coarse vector, exact re-rank, and the moment in each hit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eaglenet.errors import StoreError, UsageError
from eaglenet.methods.base import Method
from eaglenet.search.filters import Filters
from eaglenet.search.models import model_identity, put_on, require_model
from eaglenet.search.queries import (
    FrameQuery,
    Query,
    TextQuery,
    clean_queries,
    clean_query,
    encode_sentences,
)
from eaglenet.search.query_files import clips_of_image, clips_of_video
from eaglenet.search.reranking import Reranker
from eaglenet.search.results import (
    CaptionHit,
    Explanation,
    explain_clip,
    first_existing,
    make_hits,
    rank_captions,
)
from eaglenet.search.shortlist import Shortlist, exact_shortlists, is_exact
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.view import View
from eaglenet.types import Clips, Hit, VideoFeatures

MAX_RESULTS = 10_000


class Engine:
    """Searches one store. Safe to use from several threads; sees what a writer publishes."""

    def __init__(
        self,
        store: Store,
        *,
        model: str | Path | Method | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._model = model
        self._device = device
        self._lock = threading.RLock()
        self._loaded: tuple[str, Method, Reranker] | None = None
        self._view = View.of(store)

    @classmethod
    def open(
        cls,
        store: str | Path,
        model: str | Path | Method | None = None,
        device: torch.device | str | None = None,
    ) -> Engine:
        """Open a store for searching; reads neither the model nor the vectors yet.

        ``model`` is only needed where the folder the store was made with has moved.
        """
        return cls(open_store(store), model=model, device=device)

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
        return put_on(method, self._device) if self._device is not None else method

    def warm_up(self) -> None:
        """Load the model and the vectors and run one query, so that the next one is fast."""
        _ = self.method
        if len(self.snapshot):
            self.search("warm up", k=1)

    def search(
        self,
        query: str,
        k: int = 10,
        *,
        shortlist: int = 100,
        filters: Filters | None = None,
        negatives: Sequence[str] = (),
        group_files: bool = False,
        rerank: bool = True,
    ) -> list[Hit]:
        """The k best moments for a sentence, best first.

        Args:
            shortlist: clips that are re-ranked with the exact score; at least ``k`` are.
            negatives: phrases to keep away from; see :class:`TextQuery` for the arithmetic.
            group_files: one hit a file; the others are in ``metadata["more"]``.
            rerank: False ranks by the coarse vector alone.
        """
        return self.search_many(
            [query],
            k,
            shortlist=shortlist,
            filters=filters,
            negatives=negatives,
            group_files=group_files,
            rerank=rerank,
        )[0]

    def search_many(
        self,
        queries: Sequence[str],
        k: int = 10,
        *,
        shortlist: int = 100,
        filters: Filters | None = None,
        negatives: Sequence[str] = (),
        group_files: bool = False,
        rerank: bool = True,
    ) -> list[list[Hit]]:
        """:meth:`search` for several sentences: encoded and shortlisted together."""
        sentences, away = clean_queries(queries), clean_queries(negatives)
        if not sentences:
            return []
        view = self._now()
        method, reranker = self._model_of(view)
        features = encode_sentences(method, [*sentences, *away])
        first_away = len(sentences)
        rows = list(range(first_away, first_away + len(away)))
        asked = [TextQuery(reranker, features[[number, *rows]]) for number in range(first_away)]
        return self._find(view, asked, k, shortlist, filters, group_files, rerank)

    def search_video(
        self,
        video: str | Path,
        k: int = 10,
        *,
        window: tuple[float, float] | None = None,
        **options: Any,
    ) -> list[Hit]:
        """Clips that look like a video file (or its ``window`` in seconds), or like a clip id."""
        if isinstance(video, str) and video in self:
            return self.similar(video, k, **options)
        view = self._now()
        clips = clips_of_video(Path(video), view.manifest.frame_spec, window)
        return self._search_frames(view, self._encode(view, clips), k, **options)

    def search_image(self, image: str | Path, k: int = 10, **options: Any) -> list[Hit]:
        """Clips that show what an image shows."""
        view = self._now()
        clips = clips_of_image(Path(image), view.manifest.frame_spec)
        return self._search_frames(view, self._encode(view, clips), k, **options)

    def similar(self, clip_id: str, k: int = 10, **options: Any) -> list[Hit]:
        """Clips that look like a clip of the store, without that clip itself."""
        view = self._now()
        clips = self._stored(view, np.array([view.snapshot.row(clip_id)]))
        return self._search_frames(view, clips.features, k, without=clip_id, **options)

    def _search_frames(
        self,
        view: View,
        features: VideoFeatures,
        k: int,
        *,
        shortlist: int = 100,
        filters: Filters | None = None,
        group_files: bool = False,
        without: str | None = None,
    ) -> list[Hit]:
        query = FrameQuery(self._model_of(view)[0], features)
        return self._find(view, [query], k, shortlist, filters, group_files, True, without)[0]

    @torch.no_grad()
    def best_captions(
        self, video: str | Path, captions: Sequence[str], k: int = 10
    ) -> list[CaptionHit]:
        """The captions that fit a video file or a clip id best (video-to-text)."""
        if not captions:
            raise UsageError("no captions were given; give at least one")
        k = _checked_count(k)
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
            "index": view.approximate.kind(snapshot) or "exact scan",
            "version": snapshot.version,
            "roots": list(manifest.roots),
            "tags": sorted({tag for tags in snapshot.files.tags for tag in tags}),
        }

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
        allowed = snapshot.rows_of(filters.allowed(snapshot.files)) if filters else None
        # An index cannot know which clips a filter leaves; a scan of those is always right.
        if allowed is None and not is_exact(len(snapshot), view.manifest.dim):
            found = view.approximate.shortlists(snapshot, queries, k)
            if found is not None:
                return found
        return exact_shortlists(snapshot, queries, k, allowed)

    @torch.no_grad()
    def _find(
        self,
        view: View,
        queries: Sequence[Query],
        k: int,
        shortlist: int,
        filters: Filters | None,
        group_files: bool,
        rerank: bool,
        without: str | None = None,
    ) -> list[list[Hit]]:
        k = _checked_count(k)
        if not isinstance(shortlist, SupportsIndex) or shortlist.__index__() < 1:
            raise UsageError(f"shortlist must be 1 or more clips to rank exactly, not {shortlist}")
        # One more, because the clip that was asked with is taken out again.
        width = max(k, min(shortlist, MAX_RESULTS)) + (without is not None)
        vectors = torch.stack([query.coarse.float().cpu() for query in queries])
        snapshot = view.snapshot
        found = self._shortlists(view, vectors, width, filters)
        if without is not None:
            found = [each.without(snapshot.row(without)) for each in found]
        results = []
        for query, each in zip(queries, found, strict=True):
            if not rerank and not group_files:
                each = each.first(k)
            clips = self._stored(view, each.rows)
            path = filters.path if filters is not None else None
            hits = make_hits(snapshot, query, each, clips, k, group_files, rerank, path)
            results.append(hits)
        return results

    def _stored(self, view: View, rows: NDArray[np.int64]) -> StoredClips:
        device = self._model_of(view)[0].device
        return view.manifest.layout.unpack(view.snapshot.records(rows), device)

    @torch.no_grad()
    def _encode(self, view: View, clips: Clips) -> VideoFeatures:
        method = self._model_of(view)[0]
        return method.encode_video(clips.to(method.device))


def _checked_count(k: int) -> int:
    if not isinstance(k, SupportsIndex) or not 1 <= k.__index__() <= MAX_RESULTS:
        raise UsageError(f"k must be a whole number between 1 and {MAX_RESULTS}, not {k!r:.60}")
    return k


def open(
    store: str | Path,
    model: str | Path | Method | None = None,
    device: torch.device | str | None = None,
) -> Engine:
    """``eaglenet.open``: see :meth:`Engine.open`."""
    return Engine.open(store, model, device)
