"""What cannot work is told in one line before a model is loaded, which takes seconds."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import EagleNetError
from eaglenet.search import torch_model as model

runner = CliRunner()


@pytest.mark.parametrize(
    ("module", "arguments", "told"),
    [
        ("ray", ["--executor", "ray"], "pip install 'eaglenet[ray]'"),
        ("rapidocr", ["--read-text"], "pip install 'eaglenet[ocr]'"),
        ("faster_whisper", ["--listen", "tiny"], "pip install 'eaglenet[speech]'"),
        (None, ["--executor", "nowhere"], "unknown executor 'nowhere' (known: local, ray)"),
        (None, ["--precision", "fp17"], "precision 'fp17' is unknown"),
        (None, ["--device", "tpu"], "--device tpu is unknown"),
        (None, ["nosuch"], "nosuch: no such file or folder"),
    ],
)
def test_index_reports_problems_before_loading_a_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str | None,
    arguments: list[str],
    told: str,
) -> None:
    def load(name: str) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(model, "load_model", load)
    if module is not None:
        monkeypatch.setitem(sys.modules, module, None)
    command = ["index", str(tmp_path), "--store", str(tmp_path / "store"), *arguments]
    result = runner.invoke(app, command)
    assert isinstance(result.exception, EagleNetError)
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)
    assert "loading" not in result.stderr
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("videos", "has other files in it"),
        ("videos/a.mp4", "a.mp4 is a file"),
        ("videos/a.mp4/store", "a.mp4 is a file"),
    ],
)
def test_index_refuses_an_impossible_store_before_loading_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, told: str
) -> None:
    def load(name: str) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(model, "load_model", load)
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos" / "a.mp4").write_bytes(b"of a user")
    command = ["index", str(tmp_path / "videos"), "--store", str(tmp_path / place)]
    result = runner.invoke(app, [*command, "--model", "fast"])
    assert isinstance(result.exception, EagleNetError)
    assert told in str(result.exception)
    assert "loading" not in result.stderr
    assert (tmp_path / "videos" / "a.mp4").read_bytes() == b"of a user"
