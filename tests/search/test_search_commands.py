"""`eaglenet index`, `search` and `store` as a person runs them."""

import contextlib
import errno
import io
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from eaglenet import __version__
from eaglenet.cli import main
from eaglenet.cli.main import app
from eaglenet.cli.queries import read_lines
from eaglenet.cli.search_notes import note_indexed_folder, print_name_hint
from eaglenet.core.errors import EagleNetError, StoreError, UsageError, VideoDecodeError
from eaglenet.core.text import format_time
from eaglenet.search.engine import Engine
from eaglenet.search.hits import SearchResult
from eaglenet.search.options import SearchOptions, parse_date
from eaglenet.search.query import Query
from eaglenet.store.manifest import Layout
from eaglenet.store.records import Changes
from eaglenet.store.store import LocalStore
from small_model import save_small_model
from small_videos import colour_video, damaged_video
from stand_in_chat import serve_chat

runner = CliRunner()
# Starting workers takes seconds; tests/test_light_install.py indexes with them.
IN_THIS_PROCESS = ("--workers", "0")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos, a model folder and a store made by the command."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "videos").mkdir()
    colour_video(folder / "videos" / "red & green.mp4", ["red", "green"])
    colour_video(folder / "videos" / "blue.mp4", ["blue", "blue"])
    (folder / "videos" / "broken.mp4").write_bytes(b"nothing")
    (folder / "tags.csv").write_text("path,tags\nblue.mp4,sky\n")
    save_small_model(folder / "model")
    arguments = ["index", str(folder / "videos"), "--store", str(folder / "store")]
    arguments += ["--model", str(folder / "model"), "--tags", str(folder / "tags.csv"), "--json"]
    arguments += IN_THIS_PROCESS
    result = runner.invoke(app, arguments)
    assert result.exit_code == 3, result.output
    report = json.loads(result.stdout)
    assert (report["indexed"], report["clips"]) == (2, 2)
    assert [Path(problem["path"]).name for problem in report["problems"]] == ["broken.mp4"]
    return folder


def search(world: Path, *arguments: str) -> str:
    result = runner.invoke(
        app, ["search", "--store", str(world / "store"), *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_indexing_again_reports_in_words(world: Path) -> None:
    arguments = ["index", str(world / "videos"), "--store", str(world / "store"), *IN_THIS_PROCESS]
    result = runner.invoke(app, [*arguments, "--model", str(world / "model")])
    assert result.exit_code == 0  # The broken file is known, and was not tried again.
    assert "0 videos indexed" in result.stdout
    assert "2 unchanged" in result.stdout
    known = f"1 file not indexed, known before this run: {world / 'videos' / 'broken.mp4'}\n"
    assert known in result.stderr
    tried = runner.invoke(app, [*arguments, "--retry"])
    assert (tried.exit_code, "broken.mp4: " in tried.stderr) == (3, True)


def test_search_prints_a_table_with_links(world: Path) -> None:
    text = search(world, "a red car", "-k", "2")
    assert "blue.mp4" in text
    assert "red & green.mp4" in text
    assert "0:0" in text


def test_search_prints_json(world: Path) -> None:
    found = json.loads(search(world, "a red car", "--json", "--not", "blue"))
    assert found["query"] == "a red car"
    assert [hit["rank"] for hit in found["hits"]] == [1, 2]
    assert set(found["hits"][0]) >= {"clip_id", "path", "score", "coarse_score", "moment"}


def test_filters_and_grouping_reach_the_engine(world: Path) -> None:
    for options in (["--tag", "sky"], ["--path", "*/blue*"], ["--group", "--path", "blue.mp4"]):
        hits = json.loads(search(world, "car", "--json", *options))["hits"]
        assert [Path(hit["path"]).name for hit in hits] == ["blue.mp4"]
    for options in (["--after", "2999-01-01"], ["--max-duration", "1"], ["--tag", "' OR 1=1"]):
        assert json.loads(search(world, "car", "--json", *options))["hits"] == []
    nothing = search(world, "car", "--min-duration", "99")
    assert nothing == "no results for 'car': none of the 2 files has at least 99 s\n"


def test_says_how_many_clips_pass_the_filters(world: Path) -> None:
    def searched(*options: str) -> str:
        result = runner.invoke(app, ["search", "car", "--store", str(world / "store"), *options])
        return result.stderr.splitlines()[0].partition(" in ")[0]

    assert searched() == "searched 2 clips"
    assert searched("--path", "blue*") == "searched 1 of 2 clips"
    assert searched("--min-duration", "99") == "searched 0 of 2 clips"
    assert searched("--in", "speech").startswith("this store has no transcripts")


def test_says_once_how_to_write_a_negation(world: Path) -> None:
    arguments = ["search", "a red car but no girl", "--store", str(world / "store")]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("hardly matters to a model") == 1
    # A whole command would lack the store, and options such as --path.
    assert "(or: 'a red car' --not girl)" in result.stderr
    assert "girl" not in result.stdout.replace("a red car but no girl", "")


def test_says_that_paths_contain_the_text(world: Path) -> None:
    def hints(text: str, *options: str) -> list[str]:
        arguments = ["search", text, "--store", str(world / "store"), *options]
        return [
            line for line in runner.invoke(app, arguments).stderr.splitlines() if "path" in line
        ]

    expected = "1 path contains this text; search only there: --path 'RED & green'"
    assert hints("RED & green") == [expected]
    for options in (["car"], ["world"], ["blue", "--path", "blue"], ["blue", "--json"]):
        assert hints(*options) == []


def test_a_text_that_looks_like_a_name_is_found_among_the_paths_too(
    world: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A likely hit would else hide that a file is called so."""
    with Engine.open(world / "store") as engine:
        (hit,) = engine.search("blue", 1)
        likely_hit = replace(hit, confidence=0.9)
        for text, is_named in (("blue.mp4", True), ('"blue.mp4"', True), ("blue", False)):
            result = SearchResult(Query(text), [likely_hit])
            print_name_hint(engine, result, SearchOptions())
            assert ("1 path contains" in capsys.readouterr().err) == is_named, text


def test_a_dash_reads_queries_from_standard_input(world: Path) -> None:
    command = ["search", "-", "--store", str(world / "store"), "--json", "-k", "1"]
    result = runner.invoke(app, command, input="red car\nblue\n")
    assert [entry["query"] for entry in json.loads(result.stdout)] == ["red car", "blue"]


def test_several_queries_come_from_a_file(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("red car\n\nblue\n")
    found = json.loads(search(world, "--queries", str(queries), "--json", "-k", "1"))
    assert [entry["query"] for entry in found] == ["red car", "blue"]
    queries.write_text("\n")
    with pytest.raises(UsageError, match="one text per line"):
        read_lines(queries)
    # As Python reads bytes of Latin-1 in the locale C.
    for text, told in (("", "standard input: is empty"), ("caf\udce9", "standard input: is not")):
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        with pytest.raises(UsageError, match=told):
            read_lines(Path("-"))


def test_searches_with_images_videos_and_clips(world: Path, tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (50, 30), (0, 0, 255)).save(tmp_path / "blue.png")
    by_image = json.loads(search(world, "--image", str(tmp_path / "blue.png"), "--json"))
    assert Path(by_image["hits"][0]["path"]).name == "blue.mp4"
    video = world / "videos" / "red & green.mp4"
    by_video = json.loads(search(world, "--video", str(video), "--json"))
    assert by_video["hits"][0]["path"] == str(video)
    clip_id = by_video["hits"][0]["clip_id"]
    similar = json.loads(search(world, "--similar", clip_id, "--json"))
    assert [Path(hit["path"]).name for hit in similar["hits"]] == ["blue.mp4"]
    assert search(world, "--similar", clip_id).startswith("similar to red & green.mp4, 0:0")


def test_captions_are_ranked_for_a_video(world: Path, tmp_path: Path) -> None:
    captions = tmp_path / "captions.txt"
    captions.write_text("a red car\na blue car\ngreen\n")
    video = str(world / "videos" / "blue.mp4")
    options = ["--video", video, "--captions", str(captions)]
    ranked = json.loads(search(world, *options, "--json", "-k", "2"))
    assert [hit["rank"] for hit in ranked] == [1, 2]
    assert ranked[0]["score"] >= ranked[1]["score"]
    assert ranked[0]["caption"] in search(world, *options)


def test_hits_are_saved_as_clips_and_as_a_page(world: Path, tmp_path: Path) -> None:
    from eaglenet.video.decoding import probe

    page = tmp_path / "page.html"
    options = ["--save-clips", str(tmp_path / "clips"), "--html", str(page), "--json"]
    hits = json.loads(search(world, "<script>alert(1)</script> red", *options))["hits"]
    for hit in hits:
        start, end = (hit["moment"][name] for name in ("start", "end"))
        length = min(end + 1, hit["duration"]) - max(start - 1, 0)
        # Copied from a keyframe before it, to the last frame that needs none past the end.
        assert probe(hit["saved"]).duration == pytest.approx(length, abs=0.25 + 4 / 8)
        assert Path(hit["saved"]).name.startswith(f"{Path(hit['path']).stem} 0m")
    html = page.read_text()
    assert html.count("data:image/jpeg;base64,") == 2
    assert "<script>" not in html
    assert "red%20%26%20green.mp4" in html


@pytest.mark.parametrize("form", ["text", "json"])
def test_results_are_printed_although_the_disk_is_full(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """After one of two clips was saved."""

    def sync_if_room(path: Path) -> None:
        if path.is_file() and list(tmp_path.glob("[!.]*.mp4")):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("eaglenet.core.files.sync", sync_if_room)
    command = ["search", "red", "--store", str(world / "store"), "--save-clips", str(tmp_path)]
    result = runner.invoke(app, [*command, *(["--json"] if form == "json" else [])])
    assert isinstance(result.exception, UsageError)
    assert "No space left on device" in str(result.exception)
    (saved,) = tmp_path.iterdir()
    if form == "json":
        hits = json.loads(result.stdout)["hits"]
        assert [hit["saved"] for hit in hits] == [str(saved), None]
        return
    assert all(name in result.stdout for name in ("red & green.mp4", "blue.mp4"))
    assert result.stdout.endswith(f"saved {saved}\n")


def test_saving_into_an_indexed_folder_is_noted(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    roots = [str(tmp_path / "videos")]
    note_indexed_folder(tmp_path / "videos" / "saved", roots)
    assert f"is in the indexed folder {roots[0]}" in " ".join(capsys.readouterr().err.split())
    note_indexed_folder(tmp_path / "videos2", roots)
    command = ["search", "red", "--store", str(world / "store"), "--save-clips", str(tmp_path)]
    assert "indexed folder" not in runner.invoke(app, command).stderr + capsys.readouterr().err


def test_all_hits_are_saved_as_one_reel_and_as_a_timeline(world: Path, tmp_path: Path) -> None:
    import av

    reel, timeline = tmp_path / "reel.mp4", tmp_path / "hits.edl"
    text = search(
        world, "a red car", "--save-reel", str(reel), "--save-timeline", str(timeline),
        "--padding", "0.5",
    )  # fmt: skip
    assert f"wrote {reel}" in text
    hits = json.loads(search(world, "a red car", "--json"))["hits"]
    seconds = sum(
        min(hit["moment"]["end"] + 0.5, hit["duration"]) - max(hit["moment"]["start"] - 0.5, 0)
        for hit in hits
    )
    with av.open(str(reel)) as container:
        assert container.duration / av.time_base == pytest.approx(seconds, abs=0.3)
    assert timeline.read_text().count("FROM CLIP NAME") == len(hits)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("--save-reel", "blue.mp4"),
        ("--html", "blue.mp4"),
        ("--save-reel", "link/blue.mp4"),
        ("--save-reel", "link.mp4"),
    ],
)
def test_an_indexed_file_is_never_replaced(
    world: Path, tmp_path: Path, option: str, name: str
) -> None:
    blue = world / "videos" / "blue.mp4"
    content = blue.read_bytes()
    (tmp_path / "link").symlink_to(blue.parent)
    (tmp_path / "link.mp4").symlink_to(blue)
    output = tmp_path / name if name.startswith("link") else blue
    command = ["search", "a red car", "--store", str(world / "store"), option, str(output)]
    result = runner.invoke(app, command)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception) == f"{output} is an indexed file; choose another name"
    assert result.stdout == ""
    assert blue.read_bytes() == content


def test_subtitles_beside_an_indexed_file_are_never_replaced(world: Path, tmp_path: Path) -> None:
    subtitles = world / "videos" / "blue.en.srt"
    subtitles.write_text("mine")
    command = ["search", "a red car", "--store", str(world / "store"), "--save-timeline"]
    try:
        result = runner.invoke(app, [*command, str(subtitles)])
        assert subtitles.read_text() == "mine"
    finally:
        subtitles.unlink()
    assert isinstance(result.exception, UsageError)
    assert "may be the subtitles of" in str(result.exception)
    elsewhere = tmp_path / "blue.en.srt"
    elsewhere.write_text("an earlier timeline")
    assert runner.invoke(app, [*command, str(elsewhere)]).exit_code == 0
    assert elsewhere.read_text() != "an earlier timeline"


def test_a_reel_replaces_an_earlier_reel(world: Path, tmp_path: Path) -> None:
    (tmp_path / "blue.mp4").write_bytes(b"an earlier reel, with the name of an indexed file")
    search(world, "a red car", "--save-reel", str(tmp_path / "blue.mp4"))
    assert (tmp_path / "blue.mp4").stat().st_size > 1000


def test_a_reel_leaves_out_what_cannot_be_read(world: Path, tmp_path: Path) -> None:
    blue = world / "videos" / "blue.mp4"
    content, times = blue.read_bytes(), blue.stat()
    blue.write_bytes(b"x" * len(content))
    try:
        reel = str(tmp_path / "reel.mp4")
        command = ["search", "a red car", "--store", str(world / "store"), "--save-reel", reel]
        result = runner.invoke(app, command)
    finally:
        blue.write_bytes(content)
        os.utime(blue, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert result.exit_code == VideoDecodeError.exit_code
    assert f"wrote {reel}" in result.stdout
    assert f"1 result not saved:\n  {blue}: the file has changed" in result.stderr


def test_each_query_has_its_own_folder_of_clips(world: Path, tmp_path: Path) -> None:
    """A clip that is a hit of two queries is saved for both, at the moment of each."""
    (tmp_path / "queries.txt").write_text("red car\nblue / sky\n")
    options = ["--queries", str(tmp_path / "queries.txt"), "--save-clips", str(tmp_path / "out")]
    found = json.loads(search(world, *options, "--json", "--padding", "0", "-k", "2"))
    saved = [Path(hit["saved"]) for entry in found for hit in entry["hits"]]
    assert len(set(saved)) == 4
    assert all(path.is_file() for path in saved)
    assert {path.parent.name for path in saved} == {"01 red car", "02 blue sky"}


def test_short_ids_of_the_table_are_taken_for_similar_clips(world: Path) -> None:
    """What is printed can be given back; what is too short is refused."""
    short = search(world, "a red car").splitlines()[3].split()[3]
    assert len(short) < 16
    hits = json.loads(search(world, "--similar", short, "--json"))["hits"]
    assert len(hits) == 1
    for wrong in ("abc-0", short[:-1] + "7"):
        result = runner.invoke(app, ["search", "--store", str(world / "store"), "--similar", wrong])
        assert isinstance(result.exception, UsageError)


def test_the_store_is_described_measured_and_repaired(world: Path) -> None:
    store = ["--store", str(world / "store")]
    info = json.loads(runner.invoke(app, ["store", "info", *store, "--json"]).stdout)
    assert (info["clips"], info["index"], info["tags"]) == (2, "exact scan", ["sky"])
    assert info["model"] == str(world / "model")
    assert (info["damaged_files"], info["skipped_files"]) == (0, 1)
    shown = runner.invoke(app, ["store", "info", *store]).stdout
    assert "exact scan" in shown
    assert "skipped files      1, not indexed" in shown
    assert "transcript lines   0" in shown
    files = json.loads(runner.invoke(app, ["store", "files", *store, "--json"]).stdout)
    assert sorted(row["status"] for row in files) == ["done", "done", "failed"]
    listed = runner.invoke(app, ["store", "files", *store]).stdout.splitlines()
    assert sorted(line.split()[0] for line in listed) == ["indexed", "indexed", "skipped"]
    assert any("broken.mp4" in line for line in listed)
    recall = runner.invoke(app, ["store", "recall", *store, "-k", "1"]).stdout
    assert "recall@1 1.0000" in recall
    assert "2 clips" in runner.invoke(app, ["store", "repair", *store]).stdout


def test_a_store_with_one_vector_per_clip_says_what_its_moments_are(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["search", "a red car", "--store", str(world / "store")]
    info = ["store", "info", "--store", str(world / "store")]
    note = "moments are whole clips: this model has one vector per clip"
    assert note not in runner.invoke(app, command).stderr
    assert "exact to about" in runner.invoke(app, info).stdout
    monkeypatch.setattr(Layout, "num_frames", 1)
    assert runner.invoke(app, command).stderr.count(note) == 1
    assert note not in runner.invoke(app, [*command, "--json"]).stderr
    assert "whole clips of up to 10 s" in runner.invoke(app, info).stdout


def test_files_and_folders_are_removed_from_a_store(world: Path, tmp_path: Path) -> None:
    """What is removed is found no more; the rest is whole, and the files stay."""
    shutil.copytree(world / "store", tmp_path / "store")
    store = ["--store", str(tmp_path / "store")]
    unknown = runner.invoke(app, ["store", "remove", str(tmp_path / "nothing"), *store])
    assert isinstance(unknown.exception, UsageError)
    assert str(unknown.exception).endswith(f"with: eaglenet store files --store {store[1]}")
    # As from an unset variable in a shell, in the folder of the videos.
    with contextlib.chdir(world / "videos"):
        unnamed = runner.invoke(app, ["store", "remove", "", *store])
    assert isinstance(unnamed.exception, UsageError)
    blue = world / "videos" / "blue.mp4"
    removed = runner.invoke(app, ["store", "remove", str(blue), *store])
    assert removed.stdout == f"removed 1 file from {tmp_path / 'store'}\n"
    assert blue.exists()
    found = runner.invoke(app, ["search", "a blue sky", "--json", *store]).stdout
    assert [Path(hit["path"]).name for hit in json.loads(found)["hits"]] == ["red & green.mp4"]
    assert "intact: 1 clip of 1 file" in runner.invoke(app, ["store", "verify", *store]).stdout
    removed = runner.invoke(app, ["store", "remove", str(world / "videos"), *store])
    assert "2 files" in removed.stdout  # The broken one was known too.


def test_saves_results_although_some_files_are_missing(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "videos", tmp_path / "videos")
    shutil.copy(tmp_path / "videos" / "red & green.mp4", tmp_path / "videos" / "a copy.mp4")
    store = ["--store", str(tmp_path / "store")]
    index = ["index", str(tmp_path / "videos"), *store, "--model", str(world / "model")]
    assert runner.invoke(app, [*index, *IN_THIS_PROCESS]).exit_code == 3
    (tmp_path / "videos" / "a copy.mp4").unlink()
    (tmp_path / "videos" / "blue.mp4").unlink()
    saving = ["--save-clips", str(tmp_path / "clips"), "--json"]
    result = runner.invoke(app, ["search", "red", *store, *saving])
    assert result.exit_code == 3
    hits = {Path(hit["path"]).name: hit for hit in json.loads(result.stdout)["hits"]}
    # Of two copies the one that is still there is shown.
    assert set(hits) == {"red & green.mp4", "blue.mp4"}
    assert Path(hits["red & green.mp4"]["saved"]).is_file()
    assert hits["blue.mp4"]["saved"] is None
    assert "1 indexed file no longer exists (first: " in result.stderr
    drop = f"eaglenet index {tmp_path / 'videos'} --store {tmp_path / 'store'} --drop-missing"
    assert f"remove from the store with: {drop}\n" in result.stderr
    assert "1 result not saved" in result.stderr
    saving = ["--save-timeline", str(tmp_path / "cuts.csv")]
    result = runner.invoke(app, ["search", "red", *store, *saving])
    assert result.exit_code == 3
    assert "blue.mp4: " in result.stderr.partition("1 result not saved")[2]
    (cut,) = (tmp_path / "cuts.csv").read_text("utf-8").splitlines()[1:]
    assert "red & green.mp4" in cut
    (tmp_path / "videos" / "red & green.mp4").unlink()
    (tmp_path / "cuts.csv").unlink()
    result = runner.invoke(app, ["search", "red", *store, *saving])
    assert isinstance(result.exception, VideoDecodeError)
    assert not (tmp_path / "cuts.csv").exists()


def test_a_renamed_folder_can_be_removed_as_the_message_says(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "videos", tmp_path / "videos")
    store = ["--store", str(tmp_path / "store")]
    index = ["index", str(tmp_path / "videos"), *store, "--model", str(world / "model")]
    assert runner.invoke(app, [*index, *IN_THIS_PROCESS]).exit_code == 3
    (tmp_path / "videos").rename(tmp_path / "films")
    message = runner.invoke(app, ["search", "red", *store]).stderr
    assert f"{tmp_path / 'videos'} does not exist: if it was renamed, index it" in message
    command = message.strip().splitlines()[-1].partition("with: eaglenet ")[2]
    result = runner.invoke(app, command.split())
    assert "removed 3 files" in result.output, result.output


def test_a_changed_file_is_named_once_and_without_an_error_number(
    world: Path, tmp_path: Path
) -> None:
    shutil.copytree(world / "videos", tmp_path / "videos")
    store = ["--store", str(tmp_path / "store")]
    index = ["index", str(tmp_path / "videos"), *store, "--model", str(world / "model")]
    assert runner.invoke(app, [*index, *IN_THIS_PROCESS]).exit_code == 3
    blue = tmp_path / "videos" / "blue.mp4"
    blue.write_bytes(blue.read_bytes() + b"more")
    saving = ["--save-timeline", str(tmp_path / "cuts.csv")]
    result = runner.invoke(app, ["search", "red", *store, *saving])
    problem = result.stderr.partition("1 result not saved:\n")[2].strip()
    assert problem.startswith(f"{blue}: the file has changed since it was indexed; index")
    assert problem.endswith("eaglenet index FOLDER")


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 4), (1000.0, 1)])
def test_a_log_gets_a_line_of_progress_now_and_then(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, lines: int
) -> None:
    monkeypatch.setattr("eaglenet.core.progress.LINE_SECONDS", seconds)
    monkeypatch.setattr("eaglenet.indexing.run.COMMIT_CLIPS", 1)
    monkeypatch.setattr("eaglenet.indexing.encoding.BATCH_FRAMES", 1)
    colour_video(tmp_path / "long.mp4", ["red", "green", "blue"])
    index = ["index", str(tmp_path / "long.mp4"), "--store", str(tmp_path / "store")]
    options = ["--model", str(world / "model"), "--clip-seconds", "6", *IN_THIS_PROCESS]
    told = runner.invoke(app, [*index, *options]).stderr.splitlines()
    assert told[0] == "looking for videos"
    assert len(told) == lines
    # The first clip is told of before its file is finished.
    expected = ["0/1 files, 0 clips", "0/1 files, 1 clip", "1/1 files, 2 clips"][: lines - 1]
    assert [", ".join(line.split(", ")[:2]) for line in told[1:]] == expected
    quiet = runner.invoke(app, [*index, *options, "--json"])
    assert quiet.stderr == ""


def test_damage_and_odd_names_are_listed_a_line_each(world: Path, tmp_path: Path) -> None:
    (tmp_path / "videos").mkdir()
    damaged_video(tmp_path / "videos" / "two\nlines\x1b[31m.mp4")
    store = ["--store", str(tmp_path / "store")]
    index = ["index", str(tmp_path / "videos"), *store, "--model", str(world / "model")]
    result = runner.invoke(app, [*index, *IN_THIS_PROCESS])
    assert result.exit_code == 0
    assert "1 file indexed with unreadable parts" in result.stderr
    assert "two\\nlines\\x1b[31m.mp4: damaged: " in result.stderr
    lines = runner.invoke(app, ["store", "files", *store]).stdout.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("damaged")
    assert "two\\nlines\\x1b[31m.mp4  " in lines[0]
    assert "damaged: " not in lines[0], "the first column says it"


def test_indexing_says_what_came_to_nothing(world: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "tags.csv").write_text("path,tags\nblue.mp4,sky\nblu.mp4,sea\n")
    index = ["index", "--store", str(tmp_path / "store"), "--model", str(world / "model")]
    index += IN_THIS_PROCESS
    result = runner.invoke(app, [*index, str(tmp_path / "empty"), "--json"])
    assert (result.exit_code, json.loads(result.stdout)["clips"]) == (0, 0)
    assert "no videos or images in" in result.stderr
    result = runner.invoke(app, ["search", "red", "--store", str(tmp_path / "store")])
    assert result.exit_code == 0
    assert "store contains no clips yet" in result.stderr
    result = runner.invoke(
        app, [*index, str(world / "videos"), "--tags", str(tmp_path / "tags.csv"), "--json"]
    )
    assert json.loads(result.stdout)["unused_tags"] == ["blu.mp4"]
    assert "blu.mp4" in result.stderr


@pytest.mark.parametrize("device", ["abacus", "cuda:99"])
def test_a_device_that_is_not_there_is_one_clear_error(world: Path, device: str) -> None:
    index = ["index", str(world / "videos"), "--store", str(world / "other")]
    result = runner.invoke(app, [*index, "--model", str(world / "model"), "--device", device])
    assert isinstance(result.exception, UsageError)
    assert f"device {device}" in str(result.exception)
    assert not (world / "other").exists()
    with pytest.raises(UsageError, match=f"device {device}"):
        Engine.open(world / "store", device=device)


@pytest.mark.parametrize(
    "arguments",
    [
        ["search", "a", "--shortlist", "0"],
        ["store", "recall", "--store", "x", "-k", "0"],
        ["store", "recall", "--store", "x", "--queries", "0"],
        ["index", "x", "--store", "x", "--workers", "-1"],
    ],
)
def test_refuses_counts_below_one(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 2


def test_joins_words_without_quotes(world: Path) -> None:
    assert search(world, "a", "red", "circle") == search(world, "a red circle")
    store = ["--store", str(world / "store")]
    result = runner.invoke(app, ["search", "a red circle", "a blue square", *store])
    assert isinstance(result.exception, UsageError)
    assert "2 texts; search for one" in str(result.exception)
    assert "--queries FILE" in str(result.exception)
    result = runner.invoke(app, ["search", store[1], "a red circle"])
    assert f"{store[1]} is a store; search in it with --store {store[1]}" in str(result.exception)
    none = ["--store", str(world / "none")]  # As without the option, where nothing is indexed.
    result = runner.invoke(app, ["search", store[1], "red", *none])
    assert f"{store[1]} is a store; search in it with --store {store[1]}" in str(result.exception)
    assert isinstance(runner.invoke(app, ["search", "a " * 5000, "b"]).exception, UsageError)


@pytest.mark.parametrize(
    ("name", "is_short"), [("index", False), ("serve", False), ("search", True)]
)
def test_reports_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, is_short: bool
) -> None:
    interrupted = typer.Typer()

    def command() -> None:
        raise KeyboardInterrupt

    for each in ("index", "serve", "search"):
        interrupted.command(each)(command)

    monkeypatch.setattr(main, "app", interrupted)
    monkeypatch.setattr("sys.argv", ["eaglenet", name])
    monkeypatch.setattr(main.ShortCommand, "is_running", is_short)
    # It would end this process.
    monkeypatch.setattr(main, "end_process", lambda code, error=None: sys.exit(code))
    with pytest.raises(SystemExit) as leaving:
        main.main()
    assert leaving.value.code == 130
    told = capsys.readouterr().err
    assert told.startswith("interrupted")
    assert ("run the same command again" in told) == (name == "index")


def test_prints_the_version() -> None:
    result = runner.invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"eaglenet {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["search", "--store", "x"], UsageError, "nothing to search for; use one of: TEXT"),
        (["search", "a", "--image", "b.png"], UsageError, "a text and --image cannot be"),
        (["search", "a", "--captions", "c.txt", "--store", "x"], UsageError, "--video"),
        (["search", "a", "--store", "x", "--after", "soon"], UsageError, "not a date"),
        (["search", "a", "--min-duration", "5", "--max-duration", "1"], UsageError, "swap"),
        (["search", "a", "--min-duration", "-2"], UsageError, "not -2.0"),
        (["search", "a", "--max-duration", "-1"], UsageError, "not -1.0"),
        (["search", "a", "--after", "2026-05-31", "--before", "2026-05-01"], UsageError, "swap"),
        (["search", "a", "--store", "/nowhere/at/all"], StoreError, "no store"),
        (["store", "info", "--store", "/nowhere/at/all"], StoreError, "no store"),
    ],
)
def test_reports_wrong_usage(arguments: list[str], kind: type[EagleNetError], words: str) -> None:
    error = runner.invoke(app, arguments).exception
    assert isinstance(error, kind)
    assert words in str(error)


def test_times_are_written_as_players_do() -> None:
    assert [format_time(value) for value in (0, 59.96, 61.5, 3725.5)] == [
        "0:00.0",
        "1:00.0",
        "1:01.5",
        "1:02:05.5",
    ]


def test_commands_use_the_same_default_store(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one in the user's data folder, or that of EAGLENET_STORE; each command says which."""
    monkeypatch.delenv("EAGLENET_STORE", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    missing = runner.invoke(app, ["search", "a red car"])
    assert isinstance(missing.exception, StoreError)
    assert str(missing.exception).endswith("create one with: eaglenet index PATH")
    blue = str(world / "videos" / "blue.mp4")
    made = runner.invoke(app, ["index", blue, "--model", str(world / "model"), *IN_THIS_PROCESS])
    store = str(tmp_path / "eaglenet" / "store")
    assert f"1 clip in {store}" in made.stdout
    found = runner.invoke(app, ["search", "a red car"])
    assert "blue.mp4" in found.stdout
    assert f"searched 1 clip in {store}" in found.stderr
    for command in ("info", "verify", "repair"):
        assert store in runner.invoke(app, ["store", command]).stdout
    assert store in runner.invoke(app, ["store", "files"]).stderr
    assert Engine.open().location == store
    monkeypatch.setenv("EAGLENET_STORE", str(world / "store"))
    assert "searched 2 clips" in runner.invoke(app, ["search", "a red car"]).stderr


def test_refuses_options_that_do_not_go_together(world: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").touch()
    wrong = {
        ("a car", "--save-as", "gif"): "needs a folder: --save-clips FOLDER",
        ("--similar", str(world / "videos" / "blue.mp4")): "is a file, not a clip id; use --video",
        ("--image", str(world / "videos" / "blue.mp4")): "is a video; use --video",
        ("--image", str(tmp_path / "empty.mp4")): "empty.mp4: the file is empty (0 bytes)",
        ("--queries", "nosuch.txt"): "nosuch.txt: cannot be read as a text file: no such file",
        ("--similar", "3f9c"): "clip ids come from hits, like 3f9c-0",
    }
    for arguments, told in wrong.items():
        result = runner.invoke(app, ["search", "--store", str(world / "store"), *arguments])
        assert isinstance(result.exception, UsageError)
        assert told in str(result.exception)
    for option in ("--tags", "--files"):
        command = ["index", str(world / "videos"), "--store", str(world / "store")]
        result = runner.invoke(app, [*command, option, "nosuch.csv"])
        assert isinstance(result.exception, UsageError)
        assert "Errno" not in str(result.exception)
        assert "no such file" in str(result.exception)


def test_saved_image_does_not_replace_another(tmp_path: Path) -> None:
    from PIL import Image

    save_small_model(tmp_path / "model")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (64, 48), "red").save(tmp_path / "photos" / "me.png")
    arguments = ["index", str(tmp_path / "photos"), "--model", str(tmp_path / "model")]
    told = runner.invoke(app, [*arguments, *IN_THIS_PROCESS, "--store", str(tmp_path / "store")])
    assert told.stdout.startswith("1 image indexed")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "me.png").write_bytes(b"another")
    for _ in range(2):  # the second time its own copy is there
        saved = search(tmp_path, "a red car", "--save-clips", str(tmp_path / "out"))
        assert "me (2).png" in saved
    assert (tmp_path / "out" / "me.png").read_bytes() == b"another"
    assert len(list((tmp_path / "out").iterdir())) == 2
    command = ["search", "red", "--store", str(tmp_path / "store")]
    result = runner.invoke(app, [*command, "--save-clips", str(tmp_path / "photos")])
    assert result.exit_code == 3
    assert "me.png: is already in that folder; choose another folder" in result.stderr


def test_help_names_no_python_types() -> None:
    for command in (["search"], ["index"], ["store", "recall"], ["train"], ["recipes"]):
        shown = runner.invoke(app, [*command, "--help"]).stdout
        assert "<" not in shown, shown
        assert "TEXT" in shown or "NUMBER" in shown


def test_a_model_that_is_not_the_stores_is_refused_before_it_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    colour_video(tmp_path / "red.mp4", ["red"])
    command = ["index", str(tmp_path / "red.mp4"), "--store", str(tmp_path / "store")]
    assert runner.invoke(app, [*command, "--model", "demo", "--workers", "0"]).exit_code == 0

    def load(name: str) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("eaglenet.search.torch_model.load_model", load)
    result = runner.invoke(app, [*command, "--model", "fast"])
    assert isinstance(result.exception, EagleNetError)
    assert "was made with model 'demo' (now 'fast'): they cannot be mixed" in str(result.exception)
    # A misspelt name is another mistake, and needs no torch.
    monkeypatch.setitem(sys.modules, "torch", None)
    for arguments in (command, ["search", "red", *command[2:]]):
        result = runner.invoke(app, [*arguments, "--model", "smal"])
        assert isinstance(result.exception, EagleNetError)
        assert "there is no model 'smal'" in str(result.exception)
        assert "did you mean 'small'?" in str(result.exception)
    result = runner.invoke(app, [*command, "--model", "./nothing"])
    assert "there is no model './nothing'" in str(result.exception)
    assert "did you mean" not in str(result.exception)


def test_judge_orders_results_and_a_notice_says_if_it_cannot(world: Path) -> None:
    arguments = ["search", "red", "--store", str(world / "store"), "--json", "--judge"]
    with serve_chat(lambda question, handler: '{"match": 3}') as chat:
        result = runner.invoke(app, [*arguments, chat.url])
        assert result.exit_code == 0
        hits = json.loads(result.stdout)["hits"]
        assert [hit["metadata"]["judge_score"] for hit in hits] == [3, 3]
        assert "the judge" not in result.stderr
    result = runner.invoke(app, [*arguments, f"{chat.url}#another"])
    assert result.exit_code == 0
    assert "the judge rated 0 of 2 results" in result.stderr
    assert [hit["clip_id"] for hit in json.loads(result.stdout)["hits"]] == [
        hit["clip_id"] for hit in hits
    ]
    result = runner.invoke(app, [*arguments, "ftp://host"])
    assert isinstance(result.exception, UsageError)


def test_recording_dates_are_shown_and_searched(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world / "store", tmp_path / "store")
    with LocalStore.write(tmp_path / "store") as writer:
        (blue,) = (file for file in writer.files() if file.path.endswith("blue.mp4"))
        recorded = parse_date("2023-07-14T12:00")
        described = replace(blue, recorded=recorded, latitude=48.1, longitude=11.6, camera="Canon")
        writer.commit(Changes(files=[described]))
    table = search(tmp_path, "red")
    assert "recorded" in table.splitlines()[2]
    assert "2023-07-14" in table
    for arguments in (
        ["red", "--near", "48.1,11.6", "--within", "5km"],
        ["red", "--camera", "CANON"],
        ["red", "--after", "2023-07-14", "--before", "2023-07-15"],
        ["red, July 2023"],
    ):
        (hit,) = json.loads(search(tmp_path, *arguments, "--json"))["hits"]
        assert hit["metadata"]["recorded"] == recorded
        assert (hit["metadata"]["latitude"], hit["metadata"]["camera"]) == (48.1, "Canon")
    dated = json.loads(search(tmp_path, "red, July 2023", "--json"))
    assert dated["notice"].startswith("'July 2023' was read as a date")
    literal = json.loads(search(tmp_path, "red, July 2023", "--literal", "--json"))
    assert (len(literal["hits"]), literal["notice"]) == (2, "")
    result = runner.invoke(app, ["search", "--store", str(tmp_path / "store"), "red in 2023"])
    assert "--literal searches for the text as it is" in result.stderr
    undated = "1 file has no recording date: the modification time was used"
    assert result.stderr.count(undated) == 1
    result = runner.invoke(app, ["search", "--store", str(tmp_path / "store"), "red, July 2023"])
    (searched,) = (line for line in result.stderr.splitlines() if line.startswith("searched"))
    assert searched.startswith("searched 1 of 2 clips")
    assert searched.endswith(f"; {undated}")
    info = runner.invoke(app, ["store", "info", "--store", str(tmp_path / "store")]).stdout
    assert "1 with a date, 1 with a place" in info
