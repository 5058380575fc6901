"""The whole product once: the demo command, and train -> evaluate -> index -> search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import eaglenet
from eaglenet.cli.demo import CLIPS as REAL_CLIPS
from eaglenet.cli.demo import EXAMPLES, choose_examples
from eaglenet.cli.main import app
from eaglenet.research.data.demo.dataset import demo_split, render_clips, render_world
from sampling import one_in

CLIPS = 24
TINY = (
    "training.epochs=1",
    "training.batch_size=6",
    "data.options.train=12",
    "data.options.val=4",
    "data.options.test=10",
)


def invoke(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(part) for part in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder of a finished run of the demo world, and what the command printed."""
    output = tmp_path_factory.mktemp("shown") / "demo"
    return output, json.loads(
        invoke("data", "demo-world", "--output", output, "--clips", str(CLIPS), "--json")
    )


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder of a finished demo of real clips, and what the command printed."""
    output = tmp_path_factory.mktemp("real") / "demo"
    return output, json.loads(invoke("demo", "--output", output, "--json"))


@pytest.mark.slow
def test_the_demo_finds_the_right_real_clip_first_for_every_query(
    real: tuple[Path, dict[str, Any]],
) -> None:
    _, report = real
    assert report["store"]["clips"] == 12
    first = [Path(result["hits"][0]["path"]).name for result in report["results"]]
    assert first == [example.file for example in EXAMPLES]


@pytest.mark.slow
def test_the_demo_draws_frames_of_every_hit(real: tuple[Path, dict[str, Any]]) -> None:
    from PIL import Image

    output, _ = real
    with Image.open(output / "results.png") as picture:
        assert picture.width > 800
        assert picture.height > 700
        # Photographs have thousands of colours; an empty sheet with text has a few dozen.
        assert len(set(picture.convert("RGB").resize((180, 220)).getdata())) > 5000
    assert (output / "results.html").stat().st_size > 50_000


@pytest.mark.slow
def test_the_demo_again_indexes_nothing(real: tuple[Path, dict[str, Any]]) -> None:
    output, _ = real
    text = invoke("demo", "--output", output)
    assert "(0 new files)" in text
    assert text.index("eaglenet index FOLDER") < text.index(f"eaglenet serve --store {output}")


def test_every_clip_of_the_demo_has_a_source_and_a_licence_and_they_are_small() -> None:
    licences = (REAL_CLIPS / "LICENSES.md").read_text()
    clips = [path for path in REAL_CLIPS.iterdir() if path.suffix in (".mp4", ".jpg")]
    assert len(clips) == 12
    for clip in clips:
        row = next(line for line in licences.splitlines() if f"`{clip.name}`" in line)
        assert any(name in row for name in ("public domain", "CC0", "MIT", "BSD-2-Clause"))
    assert sum(clip.stat().st_size for clip in clips) < 8e6


def test_the_demo_world_evaluates_indexes_and_searches_real_files(
    shown: tuple[Path, dict[str, Any]],
) -> None:
    output, report = shown
    assert len(list((output / "world" / "videos").glob("*.mp4"))) == CLIPS
    assert report["evaluation"]["protocol"] == f"demo world ({4 * CLIPS} texts x {CLIPS} videos)"
    assert report["store"]["clips"] == CLIPS
    assert [len(result["hits"]) for result in report["results"]] == [3, 3, 3]
    assert (output / "results.html").stat().st_size > 1000


def test_the_demo_world_draws_a_picture_with_three_rows(shown: tuple[Path, dict[str, Any]]) -> None:
    from PIL import Image

    output, _ = shown
    with Image.open(output / "results.png") as picture:
        assert picture.width > 1000
        assert 400 < picture.height < 700
        assert len(set(picture.convert("RGB").resize((90, 40)).getdata())) > 20


def test_the_demo_world_again_makes_nothing_anew(shown: tuple[Path, dict[str, Any]]) -> None:
    output, first = shown
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*.mp4")}
    again = json.loads(
        invoke("data", "demo-world", "--output", output, "--clips", str(CLIPS), "--json")
    )
    assert {path: path.stat().st_mtime_ns for path in output.rglob("*.mp4")} == before
    assert (again["store"]["indexed"], again["store"]["unchanged"]) == (0, CLIPS)
    assert again["evaluation"]["t2v"] == first["evaluation"]["t2v"]


def test_the_demo_world_says_what_to_do_next(shown: tuple[Path, dict[str, Any]]) -> None:
    output, _ = shown
    text = invoke("data", "demo-world", "--output", output, "--clips", str(CLIPS))
    assert "text-to-video [demo world" in text
    assert f"eaglenet serve --store {output}/store" in text
    assert (
        text.index("eaglenet search")
        < text.index(f"eaglenet serve --store {output}/store")
        < text.index("eaglenet train")
    )


def test_two_of_the_sentences_tell_the_same_things_in_two_orders() -> None:
    world = demo_split("test", test=CLIPS)
    (_, single), (first, one), (second, other) = choose_examples(world)
    scenes = {f"{scene.scene_id}.mp4": scene for scene in world.scenes}
    assert first != second
    assert scenes[one].events == scenes[other].events[::-1]
    assert len(scenes[single].events) == 1


def test_the_shipped_model_is_far_better_than_chance_on_unseen_clips() -> None:
    method = eaglenet.load("demo")
    world = demo_split("test", test=100)
    with torch.no_grad():
        text = method.encode_text(method.tokenizer(world.texts, max_length=32))
        video = method.encode_video(render_clips(world, method.frame_spec))
        scores = method.score(text, video)
    ranked = scores.argsort(dim=1, descending=True)
    # A couple is a clip and its twin: what is seen, whatever its order.
    couple = (ranked[:, 0] // 2 == world.video_of_text // 2).float().mean()
    right = (ranked[:, 0] == world.video_of_text).float().mean()
    assert couple > 0.6
    assert right > 0.5  # seeing no order gives at most half of the couples
    rows = torch.arange(len(scores))
    in_order = scores[rows, world.video_of_text] > scores[rows, world.video_of_text ^ 1]
    assert in_order.float().mean() > 0.7


def test_the_shipped_model_is_small() -> None:
    from eaglenet.models.files import PACKAGED

    folder = PACKAGED / "demo"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 10 * 2**20
    assert (folder / "README.md").read_text().startswith("# ")


@pytest.mark.parametrize(
    ("method", "workers"),
    one_in(2, [("eaglenet", ()), ("xpool", ("--workers", "0"))]),
    ids=["eaglenet", "xpool"],
)
def test_train_evaluate_index_and_search_by_command(
    method: str, workers: tuple[str, ...], tmp_path: Path
) -> None:
    settings = [part for setting in TINY for part in ("--set", setting)]
    invoke("train", method, "--data", "demo", "--output", tmp_path / "run", *settings, "--json")
    scores = json.loads(invoke("evaluate", tmp_path / "run", "--json"))
    assert scores["protocol"] == "demo world (40 texts x 10 videos)"
    render_world(tmp_path / "world", "test", 5)
    store = ("--store", tmp_path / "store")
    invoke("index", tmp_path / "world", *store, "--model", tmp_path / "run", *workers, "--json")
    picture = tmp_path / "found.png"
    example = ("search", "a red circle moves left", *store, "-k", "2", "--save-sheet", picture)
    found = json.loads(invoke(*example, "--json"))
    assert [hit["rank"] for hit in found["hits"]] == [1, 2]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_train_index_and_search_from_python(tmp_path: Path) -> None:
    from eaglenet.indexing.index import IndexOptions, index_videos
    from eaglenet.research.experiments.evaluation import evaluate_run
    from eaglenet.research.experiments.runs import train
    from eaglenet.research.recipes import Recipe

    run = train(Recipe("clip4clip", "demo").build().override(TINY), tmp_path / "run", device="cpu")
    assert evaluate_run(run.folder, device="cpu").num_videos == 10
    render_world(tmp_path / "world", "test", 6)
    report = index_videos(
        [tmp_path / "world"],
        tmp_path / "store",
        str(run.folder),
        options=IndexOptions(workers=0),
    )
    assert report.clips == 6
    hits = eaglenet.open(tmp_path / "store").search("a blue square rises", k=4)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
