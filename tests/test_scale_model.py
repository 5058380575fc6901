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
            encoders=2 if point["executor"] == "local" else workers,
            start_seconds=values["start_seconds"][point["executor"]],
            shard=8,
        )  # fmt: skip
        assert simulated(run) == pytest.approx(point["seconds"], rel=0.2), point


def test_the_page_says_what_was_kept() -> None:
    page = " ".join((BENCHMARKS.parent / "docs" / "scale.md").read_text().split())
    found = measured("query")
    shards = measured("shards")["1000000"]
    used = shards["processor_p50_ms"]
    assert f"{used['part']} ms of processor time in each shard and {used['front']} ms" in page
    assert f"against {used['one']} ms on one machine" in page
    wall, one = shards["parts_and_front"]["p50_ms"], shards["one"]["p50_ms"]
    assert f"wall time was {wall} ms" in page
    assert f"against {one} ms, on a machine" in page
    assert f"(load {shards['load_average']['before'][0]} on its two cores)" in page
    assert shards["are_bit_identical"]
    sizes = ("100000", "1000000", "10000000")
    loads = [found[size]["load_average"]["before"][0] for size in sizes]
    assert f"were {loads[0]}, {loads[1]} and {loads[2]} on its two cores" in page


def test_the_page_says_how_fast_one_large_store_is_filled() -> None:
    page = " ".join((BENCHMARKS.parent / "docs" / "scale.md").read_text().split())
    low, *_, high = measured("commit")["sizes"]
    slope = (high["whole_seconds"] - low["whole_seconds"]) / (high["rows"] - low["rows"]) * 1e6
    first = low["whole_seconds"] - slope * low["rows"] / 1e6
    assert f"c = {first:.2f} s + {slope:.2f} s a million rows" in page
    changes = {"commit_seconds": first, "commit_seconds_a_million": slope}
    run = archive(100_000, 512, 1, **changes)
    assert f"it takes {rate_of(run):.0f} clips a second, whatever the cluster" in page
    assert f"| the same, one store | 512 cores, 1 GPU | {predicted(run) / 3600:.0f} h |" in page
