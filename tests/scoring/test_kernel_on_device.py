"""The compiled kernels on a CUDA device, in a process without the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.gpu
def test_the_compiled_kernel_agrees_with_the_reference() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    here = Path(__file__).parent
    settings = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join([str(here.parents[1] / "src"), *sys.path]),
    }
    outcome = subprocess.run(
        [sys.executable, str(here / "kernel_on_device.py")],
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert outcome.returncode == 0, outcome.stderr
    for name, case in json.loads(outcome.stdout)["cases"].items():
        assert set(case["scorers"].values()) == {"KernelScorer"}, name
        assert case["fp32"] < 1e-5, name
        assert case["bf16"] < 3e-3, name
        assert case["same_top_1"] >= 0.999, name
