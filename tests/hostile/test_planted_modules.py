"""Python files that lie among the videos: none is ever imported, by any process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_work import list_modules
from test_videos import small_video

from eaglenet.core.process import child_command, module_path, start_child

MARKER = "PLANTED"
COMMAND = Path(sys.executable).with_name("eaglenet")


@pytest.fixture(scope="module")
def module_names() -> list[str]:
    child = start_child(list_modules)
    names = child.connection.recv()
    child.process.join()
    return [name for name in names if name.isidentifier() and name != "__main__"]


@pytest.fixture
def planted(
    tmp_path: Path, module_names: list[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """The current folder: two videos, and a module under every name that a child imports."""
    folder, marks = tmp_path / "videos", tmp_path / "marks"
    folder.mkdir()
    marks.mkdir()
    for number in range(2):
        small_video(folder / f"film{number}.mp4", frames=30 + number)
    names = {*module_names, "sitecustomize", "usercustomize", "missing_extra"}
    for name in names - {"eaglenet"}:
        text = f"open({str(marks / name)!r}, 'w').close()\nraise ImportError('planted')\n"
        (folder / f"{name}.py").write_text(text)
    assert {"pickle", "json", "resource", "numpy", "av", "fractions"} <= names
    monkeypatch.chdir(folder)
    yield folder
    assert [mark.name for mark in marks.iterdir()] == []


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_index_in_a_folder_with_planted_modules(planted: Path, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    result = run(str(COMMAND), "index", ".", "--store", store, "--workers", "1")
    assert result.returncode == 0, result.stderr
    result = run(str(COMMAND), "search", "red", "--store", store, "--json")
    assert result.returncode == 0, result.stderr
    assert "film1.mp4" in result.stdout


@pytest.mark.slow
def test_ray_workers_in_a_folder_with_planted_modules(planted: Path, tmp_path: Path) -> None:
    """Ray adds the current folder of the driver to the module path of its workers."""
    pytest.importorskip("ray")
    command = [str(COMMAND), "index", ".", "--store", str(tmp_path / "store")]
    result = run(*command, "--workers", "1", "--executor", "ray")
    assert result.returncode == 0, result.stderr


def test_benchmarks_start_children_without_the_current_folder() -> None:
    """`python -m` and `python -c` put it first on the module path, `-P` does not."""
    scripts = list((Path(__file__).parents[2] / "benchmarks").glob("*.py"))
    starts = [
        line.strip()
        for script in scripts
        for line in script.read_text().splitlines()
        if re.search(r"""sys\.executable, ("-[mc]"|\*)""", line)
    ]
    assert len(scripts) > 20
    assert starts == []


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"PYTHONPATH": ""}, id="empty PYTHONPATH"),
        pytest.param({"PYTHONPATH": f"{os.pathsep}."}, id="PYTHONPATH with the current folder"),
        pytest.param({"PYTHONSTARTUP": "json.py"}, id="PYTHONSTARTUP", marks=pytest.mark.slow),
    ],
)
def test_children_ignore_the_environment(
    planted: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend("")
    monkeypatch.syspath_prepend(str(planted))
    child = start_child(list_modules)
    assert "pickle" in child.connection.recv()
    child.process.join()
    assert child.process.exitcode == 0


def test_a_program_is_started_isolated(planted: Path) -> None:
    descriptor = os.open("film0.mp4", os.O_RDONLY)
    command = child_command("eaglenet.video.streaming", str(descriptor), "0", str(os.getpid()))
    result = subprocess.run(command, pass_fds=(descriptor,), capture_output=True, timeout=60)
    os.close(descriptor)
    assert result.stdout.startswith(b'{"how"'), result.stderr


def test_a_plugin_does_not_open_its_folder_to_others(planted: Path) -> None:
    Path("my_method.py").write_text("import math\n")
    code = (
        "import sys, importlib.util; from eaglenet.core import registry; "
        "registry.import_plugin('my_method'); print(importlib.util.find_spec('missing_extra'))"
    )
    result = run(sys.executable, "-P", "-c", code)
    assert result.stdout == "None\n", result.stderr
    Path("my_method.py").unlink()


def test_the_module_path_has_no_relative_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", ".", "relative", os.getcwd(), "/usr/lib/python3"])
    assert module_path()[0] == "/usr/lib/python3"
    assert len(module_path()) == 2
