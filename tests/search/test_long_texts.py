"""A text with more tokens than the model reads is cut, and the result says where."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.models.folder import load
from eaglenet.models.light_model import LightModel
from eaglenet.search.engine import Engine
from eaglenet.search.model import NumpyModel, SearchModel
from eaglenet.search.torch_model import TorchModel
from eaglenet.search.wording import long_text_notice
from small_model import save_small_model
from small_videos import colour_video

SHORT = "a man drives a red car along the coast"
LONG = " and then ".join([SHORT] * 20)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_the_notice_names_the_last_words_that_were_read(kind: str) -> None:
    model: SearchModel = (
        NumpyModel(LightModel.open("small")) if kind == "numpy" else TorchModel(load("small"))
    )
    assert long_text_notice(SHORT, model) == ""
    assert "what comes after '... red car along' was ignored" in long_text_notice(LONG, model)
    # 64 tokens with the start and the end.
    assert not model.is_cut(" ".join(["car"] * 62))
    assert model.is_cut(" ".join(["car"] * 63))
    assert long_text_notice(f"{' '.join(['car'] * 61)} dog. ", model) == ""
    # One word of many tokens.
    assert "its end was ignored" in long_text_notice("\u7ea2\u8f66" * 100, model)
    assert long_text_notice(f"a dog {chr(0x1F436) * 30} runs", model) == ""


def test_searches_say_it_once(tmp_path: Path) -> None:
    model, store = save_small_model(tmp_path / "model"), tmp_path / "store"
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos" / "red.mp4", ["red"])
    runner = CliRunner()
    arguments = ["index", str(tmp_path / "videos"), "--store", str(store), "--workers", "0"]
    assert runner.invoke(app, [*arguments, "--model", str(model)]).exit_code == 0
    result = runner.invoke(app, ["search", *LONG.split(), "--store", str(store)])
    assert result.exit_code == 0, result.output
    assert "longer" not in result.stdout
    assert len([line for line in result.stderr.splitlines() if "is longer than" in line]) == 1
    engine = Engine.open(store)
    assert "is longer than the model reads" in engine.search(LONG).notice
    assert "is longer than the model reads" in engine.search(f'"{LONG}" - "blue"').notice
    assert "longer" not in engine.search(SHORT).notice
    # Transcripts are searched with the whole text.
    assert "longer" not in engine.search(LONG, modalities="speech").notice
