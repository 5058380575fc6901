"""Tensors that belong together: moved, cut and joined as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

# A type variable, not ``Self``: the shape checker decorates methods one by one and refuses Self.
Record = TypeVar("Record", bound="TensorRecord")


def may_be_late(device: torch.device | str) -> bool:
    """Whether a copy may end after the call: to the host it may not, its reader would see zeros.

    To a GPU whoever reads it waits in the same queue.
    """
    return torch.device(device).type != "cpu"


class TensorRecord:
    """Dataclass of tensors that share their first axis, and may be moved and cut together.

    A field may also be a record itself, or a table of records by name; both go along.
    """

    def map_tensors(self: Record, function: Any) -> Record:
        changes: dict[str, Any] = {}
        for spec in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, spec.name)
            if isinstance(value, Tensor):
                changes[spec.name] = function(value)
            elif isinstance(value, TensorRecord):
                changes[spec.name] = value.map_tensors(function)
            elif isinstance(value, Mapping):
                changes[spec.name] = {
                    name: part.map_tensors(function) for name, part in value.items()
                }
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def tensors(self) -> list[Tensor]:
        """Every tensor of the record, those of inner records among them, in a fixed order."""
        found: list[Tensor] = []

        def take(value: Tensor) -> Tensor:
            found.append(value)
            return value

        self.map_tensors(take)
        return found

    def to(self: Record, device: torch.device | str, dtype: torch.dtype | None = None) -> Record:
        """Move to a device; ``dtype`` applies to floating-point fields only."""

        def move(value: Tensor) -> Tensor:
            target = dtype if dtype is not None and value.is_floating_point() else value.dtype
            return value.to(device, target, non_blocking=may_be_late(device))

        return self.map_tensors(move)

    def __getitem__(self: Record, index: Any) -> Record:
        """Rows ``index`` (a slice, an index tensor or a list) of every field."""
        if isinstance(index, int):
            index = slice(index, index + 1)
        return self.map_tensors(lambda value: value[index])

    def __len__(self) -> int:
        found = self.tensors()
        return found[0].shape[0] if found else 0

    def detach(self: Record) -> Record:
        return self.map_tensors(lambda value: value.detach())

    @classmethod
    def concatenate(cls: type[Record], parts: Sequence[Record]) -> Record:
        """Join along the first axis."""
        changes: dict[str, Any] = {}
        for spec in dataclasses.fields(cls):  # type: ignore[arg-type]
            values = [getattr(part, spec.name) for part in parts]
            first = values[0]
            if isinstance(first, Tensor):
                changes[spec.name] = torch.cat(values)
            elif isinstance(first, TensorRecord):
                changes[spec.name] = type(first).concatenate(values)
            elif isinstance(first, Mapping):
                changes[spec.name] = {
                    name: type(part).concatenate([value[name] for value in values])
                    for name, part in first.items()
                }
        return dataclasses.replace(parts[0], **changes)  # type: ignore[type-var]
