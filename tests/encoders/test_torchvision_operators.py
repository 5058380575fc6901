"""A torchvision built for another torch can be imported after its operators are declared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(boxes, scores, threshold): ...

@torch.library.register_fake("torchvision::qnms")
def qnms(boxes, scores, threshold): ...
"""
CASES = """
import os, sys, torch
from eaglenet.encoders.openclip import declare_operators

def import_twice():
    sys.path.insert(0, "other-build")
    try:
        import torchvision
    except RuntimeError as error:
        print(error)
    declare_operators()
    import torchvision

def planted():
    torch.ops.load_library = print
    declare_operators()

for case in (import_twice, planted):
    if not os.fork():
        sys.stdout = open(f"{case.__name__}.txt", "w")
        case()
        sys.exit()
    assert os.wait()[1] == 0
"""


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each case printed, in a process of its own that was forked after the imports."""
    folder = tmp_path_factory.mktemp("operators")
    for package, code, library in (
        ("other-build/torchvision", PACKAGE, b"linked with libraries that are not here"),
        ("torchvision", "", b"planted"),
    ):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(code)
        (folder / package / "_C.so").write_bytes(library)
    command = [sys.executable, "-c", CASES]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    return folder


def test_operators_of_another_build(outputs: Path) -> None:
    printed = (outputs / "import_twice.txt").read_text()
    assert printed.strip() == "operator torchvision::nms does not exist"


def test_no_library_of_the_current_folder_is_loaded(outputs: Path) -> None:
    assert str(outputs) not in (outputs / "planted.txt").read_text()
