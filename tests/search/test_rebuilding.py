"""A store gets another model: the same files, the same settings, one step to change over."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import eaglenet
from eaglenet.cli.main import app
from eaglenet.core import platform
from eaglenet.core.errors import StoreError, UsageError
from eaglenet.indexing.maintenance import swap_stores, tags_like
from small_model import save_small_model
from small_videos import colour_video


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store of one video, with clips of its own length."""
    (tmp_path / "videos").mkdir()
    colour_video(tmp_path / "videos" / "one.mp4", ["red", "blue"])
    model = save_small_model(tmp_path / "model")
    (tmp_path / "tags.csv").write_text("path,tags\none.mp4,trip;2026\n")
    run("index", str(tmp_path / "videos"), "--store", str(tmp_path / "old"), "--model", str(model),
        "--clip-seconds", "3", "--overlap", "0", "--workers", "0",
        "--tags", str(tmp_path / "tags.csv"))  # fmt: skip
    return tmp_path / "old"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def other_model(folder: Path) -> Path:
    """The same method with other weights."""
    save_small_model(folder)
    method = eaglenet.load(folder)
    for weight in method.parameters():
        weight.data.mul_(1.5)
    eaglenet.save(method, folder)
    return folder


@pytest.mark.parametrize("has_exchange", [True, False])
def test_the_same_files_are_indexed_with_another_model_and_the_stores_swap(
    old: Path, tmp_path: Path, has_exchange: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_exchange:
        monkeypatch.setattr(platform, "_libc_function", lambda name: None)
    new, engine = tmp_path / "new", eaglenet.open(old)
    before = engine.manifest
    model = other_model(tmp_path / "other")
    run("index", "--store", str(new), "--like", str(old), "--model", str(model), "--workers", "0")
    made = eaglenet.open(new)
    assert made.snapshot.files().tags == [["2026", "trip"]]
    assert made.manifest.splitting == before.splitting
    assert made.manifest.roots == before.roots
    assert len(made.snapshot) == len(engine.snapshot)
    assert engine.manifest.identity == before.identity  # it answers as before meanwhile
    run("index", "--store", str(new), "--like", str(old), "--model", str(model), "--swap",
        "--workers", "0")  # fmt: skip
    assert eaglenet.open(old).manifest.model == str(model)
    assert eaglenet.open(new).manifest.identity == before.identity
    # An engine that was open all the time answers with the new model.
    assert engine.search("red", k=1)
    assert engine.manifest.model == str(model)


def test_a_store_that_lacks_files_is_not_swapped_in_and_goes_on_later(
    old: Path, tmp_path: Path
) -> None:
    """A part of the folders, or a disk that is away, must not take the place of all."""
    videos, new = tmp_path / "videos", tmp_path / "new"
    colour_video(videos / "two.mp4", ["green", "blue"])
    run("index", str(videos), "--store", str(old), "--clip-seconds", "3", "--overlap", "0",
        "--workers", "0")  # fmt: skip
    before = eaglenet.open(old).manifest.identity
    words = ["--store", str(new), "--like", str(old), "--swap", "--workers", "0"]
    words += ["--model", str(other_model(tmp_path / "other"))]
    away = tmp_path / "away.mp4"
    (videos / "two.mp4").rename(away)
    with pytest.raises(StoreError, match=r"not swapped.*lacks 1 of the 2 files.*two\.mp4"):
        CliRunner().invoke(app, ["index", *words], catch_exceptions=False)
    assert eaglenet.open(old).manifest.identity == before
    away.rename(videos / "two.mp4")
    told = run("index", *words)
    assert "1 video indexed" in told
    assert "1 unchanged" in told
    assert eaglenet.open(old).manifest.identity != before


def test_tags_of_the_command_come_before_those_of_the_store(old: Path) -> None:
    """By path or by bare name, as the table of tags has them."""
    path = str(old.parent / "videos" / "one.mp4")
    assert tags_like(old, {}) == {path: ("2026", "trip")}
    assert tags_like(old, {"one.mp4": ("home",)}) == {}
    assert tags_like(old, {path: ()}) == {}
    assert tags_like(old, {"two.mp4": ("home",)}) == {path: ("2026", "trip")}


def test_other_weights_under_the_same_name_are_told_with_a_command_that_works(
    old: Path, tmp_path: Path
) -> None:
    """As after an update of the package with a better `small`."""
    model = other_model(tmp_path / "model")
    with pytest.raises(StoreError, match=r"other weights of .*--like .*old --model .* --swap") as e:
        eaglenet.open(old).search("red")
    words = ["index", str(tmp_path / "videos"), "--store", str(old), "--workers", "0"]
    words += ["--clip-seconds", "3", "--overlap", "0"]
    run(*words)  # Without new files the model is not even loaded.
    colour_video(tmp_path / "videos" / "new.mp4", ["red"])
    with pytest.raises(StoreError, match=r"different weights.*--like"):
        CliRunner().invoke(app, words, catch_exceptions=False)
    told = str(e.value).split("eaglenet ")[-1].replace("NEW", str(tmp_path / "new"))
    run(*told.split(), "--workers", "0")
    assert eaglenet.open(old).manifest.model == str(model)
    assert eaglenet.open(old).search("red", k=1)


def test_mistakes_are_named(old: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments, message in (
        (["--store", str(old), "--like", str(old)], "are both"),
        (
            ["--store", str(tmp_path / "new"), "--swap"],
            "--swap needs the other store: --like STORE",
        ),
        (["--store", str(tmp_path / "new")], "nothing to index"),
        (["", "--store", str(tmp_path / "new")], "a path is empty"),
    ):
        with pytest.raises(UsageError, match=message):
            runner.invoke(app, ["index", *arguments], catch_exceptions=False)
    arguments = ["watch", "", "--store", str(tmp_path / "new"), "--rounds", "1"]
    with pytest.raises(UsageError, match="a path is empty"):
        runner.invoke(app, arguments, catch_exceptions=False)
    for words in (["index", str(tmp_path)], ["search", "red"], ["store", "info"]):
        with pytest.raises(StoreError, match="location of the store is empty"):
            runner.invoke(app, [*words, "--store", ""], catch_exceptions=False)
    with pytest.raises(StoreError, match="cannot be swapped"):
        swap_stores(tmp_path / "nowhere", old)
