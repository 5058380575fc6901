"""The names a user imports, and what importing costs."""

from __future__ import annotations

import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor

import pytest

import eaglenet

PUBLIC = {
    "METHODS", "Clips", "Engine", "Filters", "FrameSpec", "Hit", "HitList", "IndexReport", "Method",
    "Moment", "Query", "SearchOptions", "TextFeatures", "Tokens", "VideoFeatures", "__version__",
    "index", "load", "open", "save",
}  # fmt: skip
HEAVY = ("torch", "av", "lancedb", "fastapi", "typer", "transformers", "triton", "matplotlib")


def test_the_public_names_are_these_and_all_can_be_had() -> None:
    assert set(eaglenet.__all__) == PUBLIC
    assert all(getattr(eaglenet, name) is not None for name in eaglenet.__all__)


def test_completion_shows_the_public_names() -> None:
    assert dir(eaglenet) == sorted(PUBLIC)


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, eaglenet; print([name for name in sys.argv[1:] if name in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


def test_model_and_training_code_imports_without_decoder_store_or_command_line() -> None:
    code = (
        "import sys\n"
        "for name in ('av', 'lancedb', 'typer', 'fastapi', 'matplotlib'):\n"
        "    sys.modules[name] = None\n"
        "import eaglenet.methods, eaglenet.scoring\n"
        "import eaglenet.research.experiments.runs, eaglenet.research.recipes\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_threads_import_the_public_names_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python raises where two threads import a package and its module at the same time."""
    active: list[str] = []
    together: list[int] = []

    def slow_import(module: str) -> types.SimpleNamespace:
        active.append(module)
        together.append(len(active))
        time.sleep(0.02)
        active.remove(module)
        return types.SimpleNamespace(load=1, open=2, index=3, METHODS=4)

    monkeypatch.setattr(eaglenet, "import_module", slow_import)
    names = ["load", "open", "index", "METHODS"]
    for name in names:
        monkeypatch.delitem(vars(eaglenet), name, raising=False)
    with ThreadPoolExecutor(4) as pool:
        values = list(pool.map(lambda name: getattr(eaglenet, name), names))
    for name in names:
        vars(eaglenet).pop(name)  # the monkeypatch puts back what was there
    assert (values, together) == ([1, 2, 3, 4], [1] * 4)
