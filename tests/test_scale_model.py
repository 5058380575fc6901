"""The model of an index run: the formula, the simulation, and what was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from scale_model import Run, archive, predict, rate_of, simulate  # noqa: E402


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
        archive(200, 64, 1, losses_per_hour=4.0),
        archive(200, 64, 1, link=100e6),
        archive(200, 64, 1, commit_seconds=60.0),
    ],
    ids=["local", "ray", "encoding", "decoding", "gpu", "losses", "storage", "commits"],
)
def test_the_formula_is_what_the_simulation_gives(run: Run) -> None:
    assert predict(run) == pytest.approx(simulate(run), rel=0.2)


def test_every_bound_is_met_by_some_run() -> None:
    free = archive(100, 64, 1)
    assert rate_of(free) == pytest.approx(64 * 2.3)
    assert rate_of(archive(100, 4_000, 1)) == pytest.approx(1_200)
    assert rate_of(archive(100, 64, 1, link=80e6)) == pytest.approx(10)
    assert rate_of(archive(100, 64, 1, commit_seconds=409.6)) == pytest.approx(10)


def test_a_commit_does_not_grow_with_the_store() -> None:
    small, *_, large = commits()
    assert large["clips"] > 9 * small["clips"]
    times = [each["commit_processor_time"]["median_ms"] for each in (small, large)]
    assert times[1] == pytest.approx(times[0], rel=0.2)


def commits() -> list[dict[str, Any]]:
    """What ``benchmarks/store.py`` measured, by the size of the store."""
    sizes: list[dict[str, Any]] = json.loads(
        (BENCHMARKS / "results" / "store-cpu.json").read_text()
    )["sizes"]
    return sizes


def test_the_simulation_gives_the_seconds_that_were_measured() -> None:
    values = measured("workers")
    for point in values["runs"]:
        workers = point["workers"]
        run = Run(
            values["clips"], 2, workers,
            decode_seconds=values["decode_seconds_per_clip"],
            encode_seconds=values["encode_seconds_per_clip"],
            encoders=2 if point["executor"] == "local" else workers,
            start_seconds=values["start_seconds"][point["executor"]],
            call_clips=8,
        )  # fmt: skip
        assert simulate(run) == pytest.approx(point["seconds"], rel=0.2), point


def test_the_page_says_what_was_kept() -> None:
    page = " ".join((BENCHMARKS.parent / "docs" / "explanation" / "scale.md").read_text().split())
    found = measured("query")
    shards = measured("shards")["1000000"]
    used = shards["processor_p50_ms"]
    assert f"{used['part']} ms of processor time in each shard and {used['front']} ms" in page
    assert f"against {used['one']} ms on one machine" in page
    wall, one = shards["parts_and_front"]["p50_ms"], shards["one"]["p50_ms"]
    assert f"wall time was {wall} ms" in page
    assert f"against {one} ms, on a busy machine" in page
    assert f"(load {shards['load_average']['before'][0]} on its two cores)" in page
    assert shards["are_bit_identical"]
    sizes = ("100000", "1000000", "10000000")
    loads = [found[size]["load_average"]["before"][0] for size in sizes]
    assert f"were {loads[0]}, {loads[1]} and {loads[2]})" in page
    for size in sizes[1:]:
        times = [found[size][name] for name in ("p50_ms", "p99_ms", "cold_p50_ms")]
        assert "| codes | " + " | ".join(f"{time:.0f} ms" for time in times) + " |" in page


def test_the_page_says_how_fast_one_large_store_is_filled() -> None:
    page = " ".join((BENCHMARKS.parent / "docs" / "explanation" / "scale.md").read_text().split())
    small, *_, large = commits()
    seconds = 4096 * large["fill_seconds"] / (large["clips"] - small["clips"])
    assert f"c = {seconds:.2f} s" in page
    assert f"takes {round(4096 / seconds, -3):,.0f} clips per second" in page
    times = [each["commit_processor_time"]["median_ms"] for each in (large, small)]
    assert f"{times[0]:.0f} and {times[1]:.0f} ms of processor time" in page
    run = archive(100_000, 512, 1, commit_seconds=seconds)
    assert f"| 100,000 h | 512 cores, 1 GPU | {predict(run) / 3600:.1f} h |" in page
    bucket = measured("bucket")["5000"]
    assert f"{bucket['commit']['p50_ms'] / 1000:.1f} s, the first copy" in page
    assert f"{bucket['cold_open_seconds']:.1f} s, and applying one commit" in page
    assert (
        f"{bucket['open_after_a_commit_seconds']:.2f} s. The store had {bucket['objects']}" in page
    )
