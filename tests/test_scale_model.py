"""The model of an index run: the formula, the simulation, and what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from scale_model import Run, archive, commit_time, predicted, rate_of, simulated  # noqa: E402


def measured(part: str) -> Any:
    values = json.loads((BENCHMARKS / "results" / "scale-cpu.json").read_text())
    if part not in values:
        pytest.skip(f"benchmarks/results/scale-cpu.json has no part {part} yet")
    return values[part]


@pytest.mark.parametrize(
    "run",
    [
        Run(2_000, 2, 2, encode_seconds=0.3, encoders=1),
        Run(2_000, 2, 2, encode_seconds=0.3, encoders=2),
        Run(2_000, 2, 1, encode_seconds=0.6, encoders=1),
        archive(200, 64, 1),
        archive(200, 1_000, 1),
        archive(200, 64, 1, losses_an_hour=4.0),
        archive(200, 64, 1, link=100e6),
        archive(200, 64, 1, commit_seconds=60.0),
    ],
    ids=["local", "ray", "encoding", "decoding", "gpu", "losses", "storage", "commits"],
)
def test_the_formula_is_what_the_simulation_gives(run: Run) -> None:
    assert predicted(run) == pytest.approx(simulated(run), rel=0.2)


def test_every_bound_is_met_by_some_run() -> None:
    free = archive(100, 64, 1)
    assert rate_of(free) == pytest.approx(64 * 2.3)
    assert rate_of(archive(100, 4_000, 1)) == pytest.approx(1_200)
    assert rate_of(archive(100, 64, 1, link=80e6)) == pytest.approx(10)
    assert rate_of(archive(100, 64, 1, commit_seconds=409.6)) == pytest.approx(10)


def test_a_commit_grows_by_its_rows_as_it_was_measured() -> None:
    points = measured("commit")["sizes"]
    low, high = points[0], points[-1]
    slope = (high["whole_seconds"] - low["whole_seconds"]) / (high["rows"] - low["rows"])
    run = Run(
        1, 1, 1,
        commit_seconds=low["whole_seconds"] - slope * low["rows"],
        commit_seconds_a_million=slope * 1e6,
    )  # fmt: skip
    for point in points[1:-1]:
        assert commit_time(run, point["rows"]) == pytest.approx(point["whole_seconds"], rel=0.2)


def test_the_simulation_gives_the_seconds_that_were_measured() -> None:
    values = measured("workers")
    for point in values["runs"]:
        workers = point["workers"]
        run = Run(
            values["clips"], 2, workers,
            decode_seconds=values["decode_seconds_a_clip"],
            encode_seconds=values["encode_seconds_a_clip"],
            encoders=workers,
            start_seconds=values["start_seconds"][point["executor"]],
        )  # fmt: skip
        assert simulated(run) == pytest.approx(point["seconds"], rel=0.2), point
