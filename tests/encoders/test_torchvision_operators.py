"""A torchvision built for another torch can be imported after its operators are declared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PACKAGE = """
import torch

@torch.library.register_fake("torchvision::nms")
def nms(boxes, scores, threshold): ...

@torch.library.register_fake("torchvision::qnms")
def qnms(boxes, scores, threshold): ...
"""
IMPORT_TWICE = """
import sys
sys.path.insert(0, sys.argv[1])
try:
    import torchvision
except RuntimeError as error:
    print(error)
from eaglenet.encoders.openclip import declare_operators
declare_operators()
import torchvision
"""


def test_operators_of_another_build(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"linked with libraries that are not here")
    command = [sys.executable, "-c", IMPORT_TWICE, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == "operator torchvision::nms does not exist"


def test_no_library_of_the_current_folder_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("")
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"planted")
    code = (
        "import torch; torch.ops.load_library = print; "
        "from eaglenet.encoders.openclip import declare_operators; declare_operators()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert str(tmp_path) not in result.stdout
