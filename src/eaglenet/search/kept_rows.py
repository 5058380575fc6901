"""Rows of tensors that took work to make, kept in memory for the next time they are wanted."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence

import torch
from torch import Tensor

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
