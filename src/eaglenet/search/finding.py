"""One version of a store and its model: queries in, hits out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from eaglenet.methods.base import Method
from eaglenet.search.approximate import Scan, shortlists_of
from eaglenet.search.choosing import Candidates
from eaglenet.search.hits import make_hits
from eaglenet.search.options import SearchOptions, checked_count
from eaglenet.search.queries import FrameQuery, Query, TextQuery, encode_sentences
from eaglenet.search.reranking import Reranker
from eaglenet.search.store.layout import StoredClips
from eaglenet.search.store.words import WordIndex
from eaglenet.search.view import View
from eaglenet.search.words.fusion import LEAST
from eaglenet.search.words.question import WordQuery, parse
from eaglenet.search.words.ranking import ClipWords, rank_clips
from eaglenet.types import Clips, Hit, VideoFeatures


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
