"""Results as plain records: mean and spread of several, and a few lines for a terminal."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def mean_and_spread(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean and sample standard deviation of metrics given as nested dicts of numbers."""
    return {
        "mean": _reduce(records, statistics.fmean),
        "std": _reduce(records, lambda v: statistics.stdev(v) if len(v) > 1 else 0.0),
    }


def _reduce(records: Sequence[dict[str, Any]], function: Any) -> dict[str, Any]:
    reduced: dict[str, Any] = {}
    for key, value in records[0].items():
        column = [record[key] for record in records]
        reduced[key] = _reduce(column, function) if isinstance(value, dict) else function(column)
    return reduced


def format_result(record: dict[str, Any]) -> str:
    """A few lines for a terminal; the protocol stands with every score."""
    lines = []
    for direction, title in (("t2v", "text-to-video"), ("v2t", "video-to-text")):
        row = record[direction]
        lines.append(
            f"{title} [{record['protocol']}]  R@1 {row['R@1']:.1f}  R@5 {row['R@5']:.1f}  "
            f"R@10 {row['R@10']:.1f}  MdR {row['MdR']:.1f}  MnR {row['MnR']:.1f}  "
            f"({row['queries']} queries)"
        )
    seconds = record["seconds"]
    lines.append(
        f"Rsum [{record['protocol']}] {record['Rsum']:.1f}; {record['videos_found']} videos found, "
        f"{record['videos_missing']} missing; encoding texts {seconds['encode_text']:.2f} s, "
        f"videos {seconds['encode_video']:.2f} s, scoring {seconds['score']:.3f} s"
    )
    if "noise" in record:
        mean, spread = record["noise"]["mean"], record["noise"]["std"]
        lines.append(
            f"over {len(record['noise']['seeds'])} noise seeds [{record['protocol']}]  "
            f"t2v R@1 {mean['t2v']['R@1']:.2f} +- {spread['t2v']['R@1']:.2f}  "
            f"v2t R@1 {mean['v2t']['R@1']:.2f} +- {spread['v2t']['R@1']:.2f}"
        )
    if "hubness" in record:
        row = record["hubness"]["t2v"]
        lines.append(
            f"with a bias against hubs [{record['protocol']}]  t2v R@1 {row['R@1']:.1f}  "
            f"R@5 {row['R@5']:.1f}  R@10 {row['R@10']:.1f}  (a fixed bank of sentences)"
        )
    lines += [f"note: {note}" for note in record["notes"]]
    return "\n".join(lines)
