"""The compiled product fused with QuickGELU, in a process without the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.gpu
def test_the_product_on_a_device_agrees_with_the_plain_layers() -> None:
    pytest.importorskip("triton")
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a Hopper GPU")
    here = Path(__file__).parent
    settings = {
        **os.environ,
        "TRITON_INTERPRET": "0",
        "PYTHONPATH": os.pathsep.join([str(here.parents[1] / "src"), *sys.path]),
    }
    process = subprocess.run(
        [sys.executable, str(here / "quick_gelu_on_device.py")],
        env=settings,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout + process.stderr
