"""One version of a store and its model: queries in, hits out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eaglenet.core.errors import StoreError
from eaglenet.core.types import Clips, Hit, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.search.hits import make_hits
from eaglenet.search.options import SearchOptions, checked_count
from eaglenet.search.query import FrameQuery, Query, TextQuery, encode_sentences
from eaglenet.search.reranking import Reranker
from eaglenet.search.selection import Candidates
from eaglenet.search.shortlist import Scan, shortlists_of, way_of
from eaglenet.search.store.base import Store, open_store
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.manifest import Manifest
from eaglenet.search.store.snapshot import Snapshot
from eaglenet.search.store.words import WordIndex
from eaglenet.search.transcripts import LEAST, ClipWords, WordQuery, Words, parse, rank_clips

# A store as a search sees it: manifest and snapshot that belong together.

ATTEMPTS = 5


@dataclass(frozen=True)
class View:
    """What was read of a store at one moment; a search holds on to the one it began with."""

    store: Store
    snapshot: Snapshot
    words: Words
    stamp: Hashable | None

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    @classmethod
    def of(cls, store: Store) -> View:
        """The store as it was opened; one that changed meanwhile is read again when it is used."""
        stamp = None
        with suppress(OSError):  # Without a snapshot, which the next line tells of.
            stamp = store.stamp()
        snapshot = store.snapshot()
        is_settled = (
            stamp is not None
            and open_store(store.location).manifest == store.manifest
            and store.stamp() == stamp
        )
        return cls(store, snapshot, Words(store), stamp if is_settled else None)

    def renewed(self) -> View:
        """Read the store again; the manifest too, for the folder may hold another store now."""
        for _ in range(ATTEMPTS):
            before = self.store.stamp()
            store = open_store(self.store.location)
            snapshot = store.snapshot()
            if store.stamp() == before:
                return View(store, snapshot, self.words, before)
        raise StoreError(f"{self.store.location} is being replaced; search again when that is done")

    def _hubness(self) -> str:
        """Which bank levels the clips that are searched now."""
        bank, note = self.snapshot.bank, self.manifest.hubness
        if bank is None:
            return "off"
        return str(note) if note is not None and note.file == bank else bank

    def info(self) -> dict[str, Any]:
        """What is in the store and how it is searched."""
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
            "index": way_of(snapshot),
            "hubness": self._hubness(),
            "version": snapshot.version,
            "roots": list(manifest.roots),
            "tags": sorted({tag for tags in snapshot.files.tags for tag in tags}),
            "lines": index.count() if (index := self.words.now()) is not None else 0,
        }


def clip_words(
    view: View, index: WordIndex | None, query: WordQuery, options: SearchOptions
) -> list[ClipWords]:
    """Clips whose words fit a query, best first; no model is needed for it."""
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


@dataclass(frozen=True)
class Finder:
    """Finds clips by their pictures, and by words that were found for them already.

    ``scan``: who makes the shortlists, where this machine does not.
    """

    view: View
    method: Method
    reranker: Reranker
    scan: Scan | None = None

    def by_sentences(
        self,
        sentences: Sequence[str],
        k: int,
        options: SearchOptions,
        words: Sequence[Sequence[ClipWords]],
    ) -> list[list[Hit]]:
        """By pictures, and with the words that were found for each sentence."""
        away = options.negatives
        features = encode_sentences(self.method, [*sentences, *away])
        first_away = len(sentences)
        rows = list(range(first_away, first_away + len(away)))
        asked = [
            TextQuery(self.reranker, features[[number, *rows]]) for number in range(first_away)
        ]
        sure = [[clip for clip in each if clip.coverage >= LEAST] for each in words]
        return self._find(asked, k, options, words=sure)

    def by_frames(self, clips: Clips, k: int, options: SearchOptions) -> list[Hit]:
        """Clips that look like one that is decoded already."""
        return self._find([FrameQuery(self.method, self.encode(clips))], k, options)[0]

    def like_row(self, row: int, k: int, options: SearchOptions) -> list[Hit]:
        """Clips that look like a clip of the store, without that clip itself."""
        query = FrameQuery(self.method, self.stored(row).features)
        return self._find([query], k, options, without=row)[0]

    def stored(self, row: int) -> StoredClips:
        """What the store holds of one clip."""
        return self._unpacked(np.array([row]))

    @torch.no_grad()
    def encode(self, clips: Clips) -> VideoFeatures:
        """What the model sees in a clip that is not in the store."""
        return self.method.encode_video(clips.to(self.method.device))

    def _unpacked(self, rows: NDArray[np.int64]) -> StoredClips:
        records = self.view.snapshot.records(rows)
        return self.view.manifest.layout.unpack(records, self.method.device)

    @torch.no_grad()
    def _find(
        self,
        queries: Sequence[Query],
        k: int,
        options: SearchOptions,
        without: int | None = None,
        words: Sequence[Sequence[ClipWords]] | None = None,
    ) -> list[list[Hit]]:
        k = checked_count(k)
        # One more, because the clip that was asked with is taken out again.
        width = options.width(k) + (without is not None)
        vectors = torch.stack([query.coarse.float().cpu() for query in queries])
        snapshot = self.view.snapshot
        shares = [query.coarse_share for query in queries]
        found = shortlists_of(snapshot, vectors, width, options.filters, self.scan, shares)
        if without is not None:
            found = [each.without(without) for each in found]
        results = []
        for number, (query, each) in enumerate(zip(queries, found, strict=True)):
            if not options.rerank and not options.group_files:
                each = each.first(2 * k if options.fold else k)
            said = {clip.row: clip for clip in (words[number][:width] if words else ())}
            each = each.extended(snapshot, vectors[number], list(said), shares[number])
            clips = self._unpacked(each.rows)
            if options.rerank and isinstance(query, TextQuery):
                clips = query.reranker.prepared(clips, snapshot.names(each.rows))
            candidates = Candidates(snapshot, each, clips, said)
            results.append(make_hits(candidates, query, k, options))
        return results
