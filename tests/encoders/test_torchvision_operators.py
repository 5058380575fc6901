"""A torchvision whose operators are for another torch can be imported once they are declared."""

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
DECLARE = "from eaglenet.encoders.openclip import declare_operators; declare_operators();"


@pytest.mark.parametrize("code", ["", DECLARE])
def test_operators_of_another_build(tmp_path: Path, code: str) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(PACKAGE)
    (tmp_path / "torchvision" / "_C.so").write_bytes(b"linked with libraries that are not here")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code} import torchvision"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if code.count("declare_operators"):
        assert (result.returncode, result.stderr) == (0, "")
    else:
        assert "operator torchvision::nms does not exist" in result.stderr


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
