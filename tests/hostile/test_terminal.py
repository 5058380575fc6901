"""What names of files and lines of tables say to a terminal: nothing but their letters."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from small_model import save_small_model
from small_videos import colour_video

EVIL = "two\x1b[2J\x1b]0;title\x07\u202ered"
SHOWN = "two\\x1b[2J\\x1b]0;title\\x07\\u202ered"
runner = CliRunner()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one video with such a name, in a folder with such a name."""
    folder = tmp_path_factory.mktemp("world")
    videos = folder / f"folder {EVIL}"
    videos.mkdir()
    colour_video(videos / f"{EVIL}.mp4", ["red", "green"])
    save_small_model(folder / "model")
    arguments = ["index", str(videos), "--store", str(folder / "store")]
    result = runner.invoke(app, [*arguments, "--model", str(folder / "model"), "--workers", "0"])
    assert result.exit_code == 0, result.output
    assert_harmless(result.output)
    return folder


def assert_harmless(output: str) -> None:
    for sign in ("\x1b", "\x07", "\u202e"):
        assert sign not in output, output


@pytest.mark.parametrize(
    "arguments",
    [("search", "a red car"), ("store", "info"), ("store", "files"), ("store", "verify")],
    ids=" ".join,
)
def test_a_stores_own_names_are_shown_as_letters(world: Path, arguments: tuple[str, ...]) -> None:
    result = runner.invoke(app, [*arguments, "--store", str(world / "store")])
    assert result.exit_code == 0, result.output
    assert_harmless(result.output)
    if arguments[-1] != "verify":
        assert SHOWN in "".join(line.strip() for line in result.output.splitlines())


def test_names_in_a_list_of_tags_are_shown_as_letters(world: Path) -> None:
    tags = world / "tags.csv"
    tags.write_text(f'path,tags\n"{EVIL}.avi",sky\n')
    videos = next(world.glob("folder*"))
    arguments = ["index", str(videos), "--store", str(world / "store"), "--tags", str(tags)]
    result = runner.invoke(app, [*arguments, "--model", str(world / "model"), "--workers", "0"])
    assert SHOWN in result.output
    assert_harmless(result.output)


def test_names_in_annotations_are_shown_as_letters(tmp_path: Path) -> None:
    (tmp_path / "captions.csv").write_text(f'video,caption\n"{EVIL}.mp4",one\nb.mp4,{EVIL}\n')
    result = runner.invoke(app, ["data", "check", "folder", "--root", str(tmp_path)])
    assert SHOWN in result.output
    assert_harmless(result.output)
