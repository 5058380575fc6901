"""Instruments for tests of the local store."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


def _library(source: Path, target: Path) -> Path:
    """Compile a layer that is loaded before libc."""
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", str(target), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Library that records every call that changes a file."""
    return _library(HERE / "recorder.c", tmp_path_factory.mktemp("recorder") / "recorder.so")


@pytest.fixture(scope="session")
def failing_calls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Library in which the n-th call that changes a file fails."""
    source = HERE.parent / "hostile" / "failing_calls.c"
    return _library(source, tmp_path_factory.mktemp("failing") / "failing.so")
