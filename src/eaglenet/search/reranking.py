"""The exact score of a shortlist, with the back end chosen once for a model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from eaglenet.core.types import TextFeatures, VideoFeatures
from eaglenet.methods.base import Method
from eaglenet.scoring import Scorer, choose
from eaglenet.scoring.scorer import ReferenceScorer
from eaglenet.search.store.layout import StoredClips

# Rows of tensors that took work to make, kept in memory for the next time they are wanted.

Rows = Mapping[str, Tensor]
"""Tensors by name, each with one row a key first."""


class KeptRows:
    """The rows that were used last, in as many bytes as are allowed. Safe in several threads."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self._lock = threading.Lock()
        self._places: OrderedDict[Hashable, int] = OrderedDict()
        self._tables: dict[str, Tensor] = {}

    def __len__(self) -> int:
        return len(self._places)

    def gather(
        self, keys: Sequence[Hashable], make: Callable[[list[int]], Rows]
    ) -> dict[str, Tensor]:
        """Rows of ``keys``, which differ; ``make`` is asked for those that are not kept.

        It is given their numbers in ``keys``, and may be asked by several threads at once.
        """
        with self._lock:
            missing = [number for number, key in enumerate(keys) if key not in self._places]
            if not missing:
                return self._taken(keys)
            for key in keys:
                if key in self._places:
                    self._places.move_to_end(key)
        made = make(missing)
        with self._lock:
            self._keep([keys[number] for number in missing], made)
            if all(key in self._places for key in keys):
                return self._taken(keys)
        # More than fits, or another thread needed the room meanwhile.
        return dict(made if len(missing) == len(keys) else make(list(range(len(keys)))))

    def _taken(self, keys: Sequence[Hashable]) -> dict[str, Tensor]:
        for key in keys:
            self._places.move_to_end(key)
        places = torch.tensor([self._places[key] for key in keys])
        return {name: table.index_select(0, places) for name, table in self._tables.items()}

    def _keep(self, keys: Sequence[Hashable], made: Rows) -> None:
        if not self._tables:
            self._tables = self._reserved(made)
        room = len(next(iter(self._tables.values()), ()))
        fresh = [number for number, key in enumerate(keys) if key not in self._places][-room:]
        if not room or not fresh:
            return
        places = []
        for number in fresh:
            place = len(self._places)
            if place >= room:
                _, place = self._places.popitem(last=False)
            self._places[keys[number]] = place
            places.append(place)
        for name, table in self._tables.items():
            table[torch.tensor(places)] = made[name][fresh]

    def _reserved(self, made: Rows) -> dict[str, Tensor]:
        """Room for as many rows as fit; the system gives memory only as it is written."""
        size = sum(value[0].numel() * value.element_size() for value in made.values())
        room = self.most_bytes // max(size, 1)
        return {name: value.new_empty((room, *value.shape[1:])) for name, value in made.items()}


KEPT_BYTES = 384 * 2**20
"""For what the scorer computes of a clip alone, half the work of a score: 3,000 clips of EagleNet.
A few clips are near to very many sentences."""


class Reranker:
    """Scores texts against stored clips as :func:`eaglenet.scoring.score_all` does.

    Choosing a back end reads the model's weights, which takes as long as scoring a few clips, so
    it is done once. Where the store holds what the factorised scorer prepares of a clip, that is
    used instead of computed.
    """

    def __init__(self, method: Method) -> None:
        self.method = method
        self._scorer: Scorer | None = None
        self._kept = KeptRows(KEPT_BYTES)

    @torch.no_grad()
    def prepared(self, clips: StoredClips, keys: Sequence[Hashable]) -> StoredClips:
        """``clips`` with what the scorer computes of each alone, from memory where it is kept.

        ``keys`` name the clips: two that differ have different ones.
        """
        features = clips.features
        if clips.prepared or not len(features) or features.frames.device.type != "cpu":
            return clips
        scorer = self._chosen(clips)
        if isinstance(scorer, ReferenceScorer):
            return clips

        def make(numbers: list[int]) -> Mapping[str, Tensor]:
            made: Mapping[str, Tensor] = scorer.prepare(features[numbers])
            return made

        return replace(clips, prepared=self._kept.gather(keys, make))

    def _chosen(self, clips: StoredClips) -> Scorer:
        if self._scorer is None:
            scorer = choose(self.method, clips.features)
            scorer.hurry()
            self._scorer = scorer
        return self._scorer

    @torch.no_grad()
    def score(self, text: TextFeatures, clips: StoredClips) -> Tensor:
        """Float32 ``[texts, clips]``."""
        scorer = self._chosen(clips)
        parts = []
        for start in range(0, len(clips.features), scorer.tile_videos):
            span = slice(start, start + scorer.tile_videos)
            is_stored = bool(clips.prepared) and clips.features.frames.device.type == "cpu"
            prepared = (
                {name: value[span] for name, value in clips.prepared.items()}
                if is_stored
                else scorer.prepare(clips.features[span])
            )
            parts.append(scorer.score(text, prepared))
        return torch.cat(parts, dim=1)


@torch.no_grad()
def prepare_for_store(method: Method, features: VideoFeatures) -> Mapping[str, Tensor]:
    """What the factorised scorer computes of a video alone; refuses models without that form."""
    prepared: Mapping[str, Tensor] = choose(method, features, backend="factorised").prepare(
        features
    )
    return prepared
