"""The allocator is told to keep freed memory before torch, which brings it, is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os, sys
from eaglenet.core import platform as freed_memory
from eaglenet.cli import index
real = freed_memory.keep_freed_memory
def note():
    print("torch" in sys.modules)
    real()
    print(os.environ["MIMALLOC_PURGE_DELAY"], flush=True)
    os._exit(0)  # The rest of the command would import torch for nothing.
index.keep_freed_memory = note
from eaglenet.cli.main import main
sys.argv = ["eaglenet", "index", sys.argv[1], "--store", sys.argv[2]]
main()
"""


@pytest.mark.parametrize("own", [None, "50"])
def test_index_keeps_freed_memory_for_a_second(tmp_path: Path, own: str | None) -> None:
    environment = {name: os.environ[name] for name in os.environ if "MIMALLOC" not in name}
    if own is not None:
        environment["MIMALLOC_PURGE_DELAY"] = own
    missing, store = tmp_path / "no.mp4", tmp_path / "store"
    ended = subprocess.run(
        [sys.executable, "-c", CODE, str(missing), str(store)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert ended.stdout.splitlines() == ["False", own or "1000"], ended.stderr
