"""What cannot work is told in one line before a model is loaded, which takes seconds."""

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.cli.options import check_output_file, check_output_folder
from eaglenet.core.errors import EagleNetError, StoreError, UsageError
from eaglenet.research import names
from eaglenet.search import torch_model as model
from eaglenet.search.engine import Engine

runner = CliRunner()


@pytest.mark.parametrize(
    ("module", "arguments", "told"),
    [
        ("ray", ["--executor", "ray"], "pip install 'eaglenet[ray]'"),
        ("rapidocr", ["--read-text"], "pip install 'eaglenet[ocr]'"),
        ("faster_whisper", ["--listen", "tiny"], "pip install 'eaglenet[speech]'"),
        (None, ["--executor", "nowhere"], "unknown executor 'nowhere' (known: local, ray)"),
        (None, ["--precision", "fp17"], "precision 'fp17' is unknown"),
        (None, ["--device", "tpu"], "device tpu is unknown"),
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


NOTHING_CREATED_THERE = "/proc"
"""A folder in which nobody can create anything, though root may write there."""


@pytest.mark.skipif(not Path(NOTHING_CREATED_THERE, "self").exists(), reason="needs Linux")
@pytest.mark.parametrize("name", ["store", "folder/store"])
@pytest.mark.parametrize("command", ["index", "watch"])
def test_index_names_a_store_that_cannot_be_created(
    tmp_path: Path, command: str, name: str
) -> None:
    path = f"{NOTHING_CREATED_THERE}/{name}"
    result = runner.invoke(app, [command, str(tmp_path), "--store", path])
    assert isinstance(result.exception, StoreError)
    assert str(result.exception).startswith(f"{path} cannot be ")
    assert "use another folder" in str(result.exception)
    assert "looking for videos" not in result.stderr


@pytest.mark.skipif(not Path(NOTHING_CREATED_THERE, "self").exists(), reason="needs Linux")
@pytest.mark.parametrize("check", [check_output_file, check_output_folder])
def test_output_goes_where_something_can_be_created(
    tmp_path: Path, check: Callable[[Path], None]
) -> None:
    with pytest.raises(UsageError, match=r"^/proc/x: cannot be written: "):
        check(Path(NOTHING_CREATED_THERE, "x"))
    check(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("option", "name", "told"),
    [
        ("--save-timeline", "list.foo", "unknown format; use a name that ends in .edl, .fcpxml"),
        ("--save-timeline", "list", "unknown format"),
        ("--save-reel", "reel.avi", "use a name that ends in .mp4"),
        ("--save-sheet", "sheet.svg", "use a name that ends in .png, .jpg or .jpeg"),
        ("--save-sheet", "none/sheet.png", "there is no folder"),
        ("--html", "none/page.html", "there is no folder"),
        ("--html", "file/page.html", "is not a folder"),
        ("--html", "folder", "is a folder"),
        ("--save-clips", "file/clips", "is not a folder"),
        ("--save-clips", "file", "is not a folder"),
    ],
)
def test_search_refuses_an_impossible_file_before_searching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, name: str, told: str
) -> None:
    (tmp_path / "file").write_text("of a user")
    (tmp_path / "folder").mkdir()

    def open_engine(*_: object) -> None:
        raise AssertionError("a store was opened")

    monkeypatch.setattr(Engine, "open", open_engine)
    before = sorted(tmp_path.rglob("*"))
    result = runner.invoke(app, ["search", "a dog", option, str(tmp_path / name)])
    assert isinstance(result.exception, UsageError)
    assert told in str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before


def test_search_refuses_an_unknown_form_of_clips_before_searching(tmp_path: Path) -> None:
    options = ["--store", str(tmp_path), "--save-clips", str(tmp_path), "--save-as", "avi"]
    result = runner.invoke(app, ["search", "a dog", *options])
    assert isinstance(result.exception, UsageError)
    assert "use video, gif, sheet" in str(result.exception)


def test_files_of_a_search_need_a_query(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt would not write them."""
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("eaglenet.cli.search.sys", terminal)
    result = runner.invoke(app, ["search", "--html", str(tmp_path / "page.html")])
    assert isinstance(result.exception, UsageError)
    assert "nothing to search for" in str(result.exception)


@pytest.mark.parametrize(
    "command",
    [
        ["store", "export", "{}"],
        ["train", "eaglenet", "--output", "{}"],
        ["compare", "eaglenet", "--data", "demo", "--output", "{}"],
        ["report", "runs", "--output", "{}"],
        ["convert", "checkpoint.pt", "{}"],
        ["demo", "--output", "{}"],
        ["data", "cache", "folder", "--root", "root", "--output", "{}"],
        ["evaluate", "run", "--output", "{}.json"],
        ["evaluate", "run", "--scores", "{}.npy"],
        ["store", "transcript", "a.mp4", "--save", "{}.srt"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_commands_refuse_what_cannot_be_written_before_they_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("of a user")
    place = str(tmp_path / "file" / "new")
    result = runner.invoke(app, [word.format(place) for word in command])
    assert isinstance(result.exception, UsageError)
    assert f"cannot be written: {tmp_path / 'file'} is not a folder" in str(result.exception)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        for check in (check_output_file, check_output_folder):
            with pytest.raises(UsageError, match="Permission denied"):
                check(tmp_path / "new")
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_disk_is_called_so(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a disk")
    try:
        (disk / "old.html").touch()
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        for check in (check_output_file, check_output_folder):
            with pytest.raises(UsageError, match="Read-only file system"):
                check(disk / "new")
        with pytest.raises(UsageError, match="Read-only file system"):
            check_output_file(disk / "old.html")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_what_can_be_written_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "old.MP4").write_bytes(b"")
    for name in ("old.MP4", "new.mp4"):
        check_output_file(tmp_path / name, (".mp4",))
    check_output_file(Path("relative.txt"))
    check_output_folder(tmp_path / "a" / "b" / "c")
    check_output_folder(Path("relative/folder"))


def test_the_home_folder_may_be_written_as_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``--output=~/a``, where shells leave it."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HOME", str(home))
    command = ["data", "demo-experts", "--count", "2", "--output"]
    assert runner.invoke(app, [*command, "~/experts"]).exit_code == 0
    assert (home / "experts").is_dir()
    # No user has this name, so it is a folder.
    assert runner.invoke(app, [*command, "~nobody-here/experts"]).exit_code == 0
    assert [path.name for path in here.iterdir()] == ["~nobody-here"]


def test_convert_names_a_missing_checkpoint_before_its_settings(tmp_path: Path) -> None:
    result = runner.invoke(app, ["convert", str(tmp_path / "no.pt"), str(tmp_path / "model")])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{tmp_path / 'no.pt'}: no such file"


def test_a_text_and_a_file_are_shown_as_one_query() -> None:
    result = runner.invoke(app, ["search", "a dog", "--image", "my dog.jpg"])
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).endswith("""write one query: '"a dog" + "my dog.jpg"'""")


@pytest.mark.parametrize(
    "command", ["evaluate ~nobody-here/run", "search fox --store ~nobody-here/store"]
)
def test_the_home_of_an_unknown_user_is_a_folder_that_does_not_exist(command: str) -> None:
    result = runner.invoke(app, command.split())
    assert result.exit_code != 0
    assert isinstance(result.exception, EagleNetError)
    assert "~nobody-here" in str(result.exception)


@pytest.mark.parametrize("option", ["--dry-run", "--json", "--log=wandb", "--data=demo"])
def test_the_towers_of_small_are_not_trained_by_options_that_they_ignore(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*arguments: object, **options: object) -> Path:
        raise AssertionError("towers were trained")

    monkeypatch.setattr("eaglenet.research.small.run.train_pairs", train)
    result = runner.invoke(app, ["train", "small", option, "--output", str(tmp_path / "run")])
    assert isinstance(result.exception, UsageError)
    assert "use only --output, --device and --set" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["index", ".", "--file-memory", "nan"],
        ["index", ".", "--file-seconds", "nan"],
        ["search", "a dog", "--padding", "nan"],
        ["search", "a dog", "--min-confidence", "nan"],
        ["watch", ".", "--interval", "nan"],
        ["serve", "--rate", "nan"],
    ],
)
def test_nan_is_no_number(arguments: list[str], tmp_path: Path) -> None:
    result = runner.invoke(app, [*arguments, "--store", str(tmp_path / "store")])
    assert result.exit_code == 2
    assert "nan is not a number" in result.output
    assert arguments[-2] in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["models", "--download", "fast", "--json"], "--download and --json cannot be combined"),
        (["models", "--download", "fast", "--measure"], "--download and --measure cannot be"),
        (["models", "--accept-licence", "mit"], "--accept-licence names no model"),
        (["store", "transcript", "a.mp4", "--save", "a.srt", "--json"], "--save and --json cannot"),
    ],
)
def test_options_are_not_ignored(arguments: list[str], told: str, tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        result = runner.invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert told in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "misspelt", "--output", "x"], "unknown method 'misspelt'"),
        (["train", "xpool", "--data", "foldr", "--output", "x"], "did you mean 'folder'?"),
        (["train", "xpool", "--tower", "small-froze", "--output", "x"], "'small-frozen'?"),
        (["train", "xpool", "--set", "trainin.epochs=3", "--output", "x"], "'training'?"),
        (["train", "xpool", "--root", "nowhere", "--output", "x"], "--root nowhere: no such"),
        (["compare", "xpool", "clip4clp:head=lstm", "--output", "x"], "'clip4clip'?"),
        (["ablate", "colour", "--output", "x"], "unknown table 'colour'"),
        (["recipes", "eagelnet"], "did you mean 'eaglenet'?"),
        (["data", "check", "foldr", "--root", "x"], "did you mean 'folder'?"),
        (["evaluate", "nowhere"], "nowhere: no such run folder"),
        (["evaluate", "small", "--data", "foldr"], "did you mean 'folder'?"),
    ],
)
def test_misspelt_names_are_refused_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    # As in a new process; importing it again would be an error.
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(names, "has_plugins", lambda: False)
    result = runner.invoke(app, arguments)
    assert isinstance(result.exception, EagleNetError)
    assert told in str(result.exception)
    assert "\n" not in str(result.exception)
    assert "torch" not in sys.modules
    assert not (tmp_path / "x").exists()


def test_names_known_without_torch_are_those_of_the_registries() -> None:
    from eaglenet.methods import METHODS, method_names
    from eaglenet.research.data import DATASETS, SOURCES
    from eaglenet.research.experiments import stored_data  # noqa: F401  (registers its sources)
    from eaglenet.research.experiments.experiment import Experiment
    from eaglenet.research.recipes import DATA, TABLES
    from eaglenet.research.recipes.setups import TOWERS
    from eaglenet.research.small.run import TOWER_RECIPES

    own = [name for name in METHODS if METHODS[name].build.__module__.startswith("eaglenet.")]
    assert method_names() == own
    assert set(names.DATASETS) <= set(DATASETS)
    assert set(names.SOURCES) <= set(SOURCES)
    assert tuple(DATA) == names.DATA
    assert tuple(TOWERS) == names.TOWERS
    assert tuple(TABLES) == names.TABLES
    assert tuple(TOWER_RECIPES) == names.TOWER_RECIPES
    assert tuple(spec.name for spec in dataclasses.fields(Experiment)) == names.SECTIONS


def test_a_plug_in_may_know_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(names, "has_plugins", lambda: True)
    names.refuse_unknown_names(methods=["misspelt"], data="foldr")
