"""What lies in a run folder, and the lines of its log: written by training, read by reports."""

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
"""A folder: the model of the epoch that was chosen."""
NAMED = ("step", "event")


@dataclass(frozen=True)
class LogEvent:
    """One line of a log.

    event: `start`, `step`, `evaluation` or `end`. step: optimizer steps done so far. values: what
    else the line holds, by name: losses, recalls, seconds.
    """

    event: str
    step: int
    values: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As it is written."""
        return {"step": self.step, "event": self.event, **self.values}

    @classmethod
    def parse(cls, line: str) -> LogEvent:
        """One line; ValueError for what is none."""
        record = untrusted.parse_json(line)
        if not isinstance(record, dict):
            raise ValueError(f"{line[:40]!r} is not a JSON object")
        values = {name: value for name, value in record.items() if name not in NAMED}
        return cls(str(record.get("event", "")), int(record.get("step", 0)), values)
