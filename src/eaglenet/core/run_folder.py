"""File names in a run folder, and the lines of its log. Training writes them, reports read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eaglenet.core import untrusted

EXPERIMENT = "experiment.json"
MANIFEST = "manifest.json"
RESULT = "result.json"
LOG = "log.jsonl"
MODEL = "model"
"""Folder with the model of the best epoch."""
WHOLE_MODEL = "whole"
"""Folder in a run on frozen towers: the towers and the trained head, a model to index with."""
_FIXED_KEYS = ("step", "event")


@dataclass(frozen=True)
class LogEvent:
    """One line of a log.

    event: `start`, `step`, `evaluation` or `end`. step: optimizer steps so far. values: losses,
    recalls, seconds and other values by name.
    """

    event: str
    step: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {"step": self.step, "event": self.event, **self.values}

    @classmethod
    def parse(cls, line: str) -> LogEvent:
        """Parse one line; raise ``ValueError`` if it is not a log line."""
        record = untrusted.parse_json(line)
        if not isinstance(record, dict):
            raise ValueError(f"{line[:40]!r} is not a JSON object")
        values = {name: value for name, value in record.items() if name not in _FIXED_KEYS}
        return cls(str(record.get("event", "")), int(record.get("step", 0)), values)
