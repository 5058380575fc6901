"""How the benchmark of towers takes its times, and how many frames it gives a tower."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def with_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folder is no package: scripts that import each other by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_sides_take_turns_of_as_many_calls_as_fill_one(monkeypatch: pytest.MonkeyPatch) -> None:
    import common
    from common import calls_per_second

    made: list[str] = []
    now = 0.0
    monkeypatch.setattr(common, "time", SimpleNamespace(perf_counter=lambda: now))

    def side(name: str, seconds: float) -> Any:
        def call() -> None:
            nonlocal now
            made.append(name)
            now += seconds

        return call

    sides = {"quick": side("quick", 0.005), "slow": side("slow", 0.08)}
    found = calls_per_second(sides, "cpu", rounds=3, turn=0.06)
    assert found == {"quick": pytest.approx(200), "slow": pytest.approx(12.5)}
    turns = [name for place, name in enumerate(made) if place == 0 or made[place - 1] != name]
    assert turns == ["quick", "slow"] * 4  # warm calls, and three rounds
    assert made.count("slow") == 2 + 3  # one call a turn at least
    assert made.count("quick") == 2 + 3 * 12


def test_a_turn_without_length_is_one_call() -> None:
    from common import calls_per_second

    made: list[int] = []
    calls_per_second({"side": lambda: made.append(1)}, "cpu", rounds=4, turn=0.0)
    assert len(made) == 2 + 4


@pytest.mark.parametrize(
    ("tower", "frames"),
    [("clip-b32", 2304), ("siglip2-b32-256", 2304), ("clip-b16", 768), ("pe-l", 768)],
)
def test_towers_of_few_tokens_get_more_frames_on_a_gpu(tower: str, frames: int) -> None:
    from towers import batch_for

    assert batch_for(tower, argparse.Namespace(batch=None, quick=False, device="cuda")) == frames
    assert batch_for(tower, argparse.Namespace(batch=None, quick=False, device="cpu")) == 16
    assert batch_for(tower, argparse.Namespace(batch=None, quick=True, device="cuda")) == 2
    assert batch_for(tower, argparse.Namespace(batch=24, quick=True, device="cuda")) == 24


def test_a_cpu_beside_a_gpu_is_not_saved_as_that_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would replace the result of the GPU."""
    import common

    monkeypatch.setattr(common, "environment", lambda: {"gpu": "NVIDIA H200"})
    names = [common.save_result("x", {}, tmp_path, device=device).name for device in ("", "cuda")]
    assert names == ["x-h200.json"] * 2
    path = common.save_result("x", {}, tmp_path, device="cpu")
    assert path.name == "x-cpu.json"
    assert json.loads(path.read_text())["environment"]["device"] == "cpu"
