"""Nothing that was reported is lost with the power: a cut after every call that changes a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from index_run import found, index
from made_store import path_of
from recording import Call, LostDisk, Survivors, read_calls

from eaglenet.store.store import LocalStore

HERE = Path(__file__).parent
FILES = 3
EVERY = {path_of(number) for number in range(FILES)}


def record(recorder: Path, root: Path) -> list[Call]:
    """Calls of a whole index run."""
    root.mkdir()
    log = root.with_suffix(".log")
    subprocess.run(
        [sys.executable, HERE / "index_run.py", root / "store", str(FILES), root / "reported"],
        env={
            **os.environ,
            "LD_PRELOAD": str(recorder),
            "RECORD_ROOT": str(root),
            "RECORD_LOG": str(log),
            "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]),
        },
        check=True,
    )
    return read_calls(log)


def reported_by(calls: list[Call]) -> set[str]:
    content = b"".join(call.content for call in calls if call.path.endswith("/reported"))
    return set(content.decode().split())


def check_cut(root: Path, calls: list[Call], cut: int, survivors: Survivors, place: Path) -> None:
    """Look at the disk after a cut, then go on with it."""
    disk = LostDisk(root, calls, cut).after_cut(place, survivors, seed=cut)
    store = disk / "store"
    reported_files = reported_by(calls[:cut])
    if reported_files:
        assert found(store) >= reported_files
    index(store, FILES)
    assert found(store) == EVERY
    assert LocalStore.open(store).verify().clips == FILES * 4
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def recorded(recorder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Call]]:
    root = tmp_path_factory.mktemp("power") / "disk"
    return root, record(recorder, root)


def test_a_cut_loses_nothing_that_was_reported(
    recorded: tuple[Path, list[Call]], tmp_path: Path
) -> None:
    root, calls = recorded
    assert reported_by(calls) == EVERY
    assert len(calls) > 150
    kinds: tuple[Survivors, ...] = ("synced", "names", "some")
    for cut in range(5, len(calls), len(calls) // 8):
        for survivors in kinds:
            check_cut(root, calls, cut, survivors, tmp_path / f"{cut}{survivors}")


@pytest.mark.slow
@pytest.mark.parametrize("survivors", ["synced", "names", "some"])
def test_no_cut_loses_anything_that_was_reported(
    survivors: Survivors, recorded: tuple[Path, list[Call]], tmp_path: Path
) -> None:
    root, calls = recorded
    for cut in range(1, len(calls) + 1):
        check_cut(root, calls, cut, survivors, tmp_path / str(cut))


def test_without_syncs_the_trial_finds_losses(
    recorded: tuple[Path, list[Call]], tmp_path: Path
) -> None:
    """The instrument works: a store that never syncs its segments is found out."""
    root, calls = recorded
    lazy = [call for call in calls if not (call.kind == "s" and "segments/" in call.path)]
    with pytest.raises(Exception, match=r"."):
        check_cut(root, lazy, len(lazy), "synced", tmp_path / "cut")
