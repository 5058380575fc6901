"""Queries in another language than the model's: detection, and the hint in Python and on the
command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.encoders.catalogue import CARDS
from eaglenet.search.engine import Engine
from eaglenet.search.wording import language_of
from small_model import save_small_model
from small_videos import colour_video

GERMAN = "ein Hund und eine Katze"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Segelboot auf dem See", "German"),
        ("Hund am Strand", "German"),
        ("un chien sur la plage", "French"),
        ("ni\u00f1os jugando en la nieve", "Spanish"),
        ("il gatto dorme", "Italian"),
        ("um cachorro na praia", "Portuguese"),
        ("een hond op het strand", "Dutch"),
        ("\u72ac\u304c\u8d70\u308b", "another language"),
        ("\u0441\u043e\u0431\u0430\u043a\u0430", "another language"),
        ("Pfannkuchen", "German"),
        ("Kindergeburtstag 2023", "German"),
        ("kein Hund", "German"),
        ("g\u00e2teau", "French"),
        ("cumplea\u00f1os", "Spanish"),
        ("compleanno", "Italian"),
        ("anivers\u00e1rio", "Portuguese"),
        ("verjaardagstaart", "Dutch"),
        ("a dog on the beach", ""),
        ("kindergarten graduation", ""),
        ("David Schwimmer", ""),
        ("Neuschwanstein", ""),
        ("Encanto abuela", ""),
        ("Feliz Navidad", ""),
        ("man in water", ""),
        ("los angeles skyline", ""),
        ("la la land poster", ""),
        ("the cover of Der Spiegel", ""),
        ("caf\u00e9 in Z\u00fcrich", ""),
        ("\U0001f600 2024 \u03c0", ""),
        ("", ""),
    ],
)
def test_a_language_is_told_from_english(text: str, language: str) -> None:
    assert language_of(text) == language


def test_hits_carry_the_hint(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine.search(GERMAN).notice == ""  # Nobody knows the languages of this model.
    monkeypatch.setitem(CARDS, engine.manifest.model, CARDS["small"])
    assert "looks like German, and small knows English only" in engine.search(GERMAN).notice
    steps = '"ein roter Ball und ein Hund" then "blue"'
    assert "German" in engine.search(steps).notice
    for query in ("a red ball", '"ein Hund und eine Katze"'):  # A phrase is looked for as it is.
        assert engine.search(query).notice == ""
    assert engine.search(GERMAN, modalities="speech").notice == ""
    monkeypatch.setitem(CARDS, engine.manifest.model, CARDS["google/siglip2-base-patch16-224"])
    assert engine.search(GERMAN).notice == ""


def test_the_command_line_says_it_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, store = save_small_model(tmp_path / "model"), tmp_path / "store"
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos" / "red.mp4", ["red"])
    runner = CliRunner()
    arguments = ["index", str(tmp_path / "videos"), "--store", str(store), "--workers", "0"]
    assert runner.invoke(app, [*arguments, "--model", str(model)]).exit_code == 0
    monkeypatch.setitem(CARDS, Engine.open(store).manifest.model, CARDS["small"])
    result = runner.invoke(app, ["search", *GERMAN.split(), "--store", str(store)])
    assert result.exit_code == 0, result.output
    assert "German" not in result.stdout
    assert len([line for line in result.stderr.splitlines() if "looks like German" in line]) == 1
