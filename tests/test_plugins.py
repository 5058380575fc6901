"""The package of docs/how-to/extending.md can be installed, trains and searches."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eaglenet.cli.main import take_imports
from eaglenet.core import registry as plugins
from eaglenet.core.errors import UsageError
from eaglenet.research.data.demo.dataset import render_world

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "extending.md"
SMALL = (
    "encoder.kind=grey_clip data.options.train=16 data.options.val=8 "
    "data.options.test=8 training.epochs=1 training.coarse_epochs=0 training.batch_size=8"
)
STEPS = """
import json, sys
from typer.testing import CliRunner
from eaglenet.cli.main import app

for command in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, command)
    print(json.dumps([result.exit_code, result.stdout, str(result.exception or "")]))
"""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files on the page."""
    folder = tmp_path_factory.mktemp("sources")
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL):
        name = re.match(r"# (our_package/\w+\.py)\n", block)
        if name:
            path = folder / name.group(1)
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
    return folder


@pytest.fixture(scope="module")
def installed(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package in a folder with pip, without network."""
    folder = tmp_path_factory.mktemp("installed")
    wheel = folder / "our_package-1.0-py3-none-any.whl"
    information = "our_package-1.0.dist-info"
    files = {
        str(path.relative_to(sources)): path.read_text() for path in sorted(sources.rglob("*.py"))
    }
    toml = re.search(r"```toml\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    assert toml is not None
    entry = toml.group(1).replace('"', "").replace("[project.entry-points.", "[")
    files |= {
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: our-package\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
        f"{information}/entry_points.txt": entry,
    }
    record = [f"{name},{_digest(text)},{len(text.encode())}" for name, text in files.items()]
    files[f"{information}/RECORD"] = "\n".join([*record, f"{information}/RECORD,,", ""])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(folder / "packages"), str(wheel)]
    subprocess.run(command, check=True, timeout=120)
    return folder / "packages"


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def run(commands: list[list[str]], place: Path, *paths: Path) -> list[tuple[int, str, str]]:
    """Run commands with the packages of ``paths``; return exit code, output and errors."""
    known = [str(path) for path in (*paths, *filter(None, sys.path))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(known), "SHELF": str(place)}
    script = [sys.executable, "-c", STEPS, json.dumps(commands)]
    done = subprocess.run(
        script, capture_output=True, text=True, env=environment, cwd=place, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_plugin_trains_evaluates_indexes_and_searches(
    installed: Path, sources: Path, tmp_path: Path
) -> None:
    settings = [word for setting in SMALL.split() for word in ("--set", setting)]
    render_world(tmp_path / "world", "test", 8, workers=1)
    (tmp_path / "train.tsv").write_text("a\ta red circle\n")
    (tmp_path / "a.mp4").write_bytes(b"damaged")
    commands = [
        ["train", "best_frame", "--output", "run", "--device", "cpu", "--json", *settings],
        ["evaluate", "run", "--device", "cpu", "--json"],
        ["index", "world/videos", "--store", "shelf://ours", "--model", "run", "--json",
         "--workers", "0"],
        ["search", "a red circle", "--store", "shelf://ours", "--json"],
        ["data", "check", "tabbed", "--root", ".", "--split", "train", "--json"],
    ]  # fmt: skip
    results = run(commands, tmp_path, installed)
    assert [code for code, _, _ in results] == [0, 0, 0, 0, 3], results
    trained, evaluated, indexed, found, checked = (json.loads(text) for _, text, _ in results)
    assert trained["method"] == "best_frame"
    assert evaluated["t2v"]["queries"] > 0
    assert indexed["indexed"] == 8
    assert len(json.dumps(found)) > 100
    assert checked["splits"][0]["undecodable"][0]["video_id"] == "a"

    # In another process, the module is on the path, but not installed.
    again = ["search", "a red circle", "--store", "shelf://ours", "--json"]
    without, named = run([again, [*again, "--import", "our_package"]], tmp_path, sources)
    assert without[0] != 0
    assert "pass --import MODULE" in without[2]
    assert (named[0], json.loads(named[1])) == (0, found)


def test_import_option_anywhere_before_a_double_dash() -> None:
    line = ["--import", "one", "search", "--import=two", "words", "--", "--import", "three"]
    assert take_imports(line) == (["one", "two"], ["search", "words", "--", "--import", "three"])
    with pytest.raises(UsageError, match="needs the name of a module"):
        take_imports(["train", "--import"])


def test_reports_module_that_cannot_be_imported() -> None:
    with pytest.raises(UsageError, match="--import no_such_module: ModuleNotFoundError"):
        plugins.import_plugin("no_such_module")


def test_broken_plugin_is_skipped_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from importlib.metadata import EntryPoint

    broken = EntryPoint("broken", "no_such_module", plugins.GROUP)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [broken])
    monkeypatch.setattr(plugins, "_loaded_groups", set())
    plugins.load_installed()
    assert "skipped plug-in broken (no_such_module)" in caplog.text


def test_threads_wait_for_the_plugins_that_another_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: plugins.Registry[int] = plugins.Registry("shape", is_open=True)
    is_loading = threading.Event()

    class Slow:
        name, value = "slow", "slow"

        def load(self) -> None:
            is_loading.set()
            time.sleep(0.2)
            assert "circle" not in shapes  # A plug-in may look up names itself.
            shapes.add("square", 4)

    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: [Slow()])
    monkeypatch.setattr(plugins, "_loaded_groups", set())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(lambda: shapes["square"])
        assert is_loading.wait(10)
        assert threads.submit(lambda: shapes["square"]).result() == first.result() == 4
