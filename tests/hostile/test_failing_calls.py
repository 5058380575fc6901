"""A disk that fails below Lance too: every system call that writes fails or is torn once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_fault_of_any_call_that_writes_loses_nothing(tmp_path: Path) -> None:
    """Index, publish and repair; both a full disk and a torn write at every call."""
    shim = tmp_path / "shim.so"
    source = HERE / "failing_calls.c"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", shim, source, "-ldl"], check=True)
    run = subprocess.run(
        [sys.executable, str(HERE / "failing_calls_trial.py"), str(tmp_path / "disk"), "1"],
        env={
            **os.environ,
            "LD_PRELOAD": str(shim),
            "PYTHONPATH": os.pathsep.join(sys.path),
            "RUST_LOG": "off",
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    print(run.stdout.splitlines()[-1])
    assert ", 0 failures" in run.stdout, run.stdout[-2000:]
