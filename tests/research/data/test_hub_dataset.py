"""Datasets of a hub with their videos inside, in the layouts of MTEB."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data import hub_dataset
from eaglenet.research.data.hub_dataset import unpack_hub_dataset
from eaglenet.research.data.records import DATASETS
from hub_repositories import repository_hub
from hub_tables import write_pairs, write_table, write_three
from sampling import one_in
from small_videos import colour_video

CAPTIONS = ["a red wall", "green", "the colour blue"]


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    return [colour_video(folder / f"{name}.mp4", [name], 1) for name in ("red", "green", "blue")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("write", one_in(2, [write_pairs, write_three]))
def test_one_command_evaluates_a_model_on_a_dataset_of_the_hub(
    tmp_path: Path, videos: list[Path], monkeypatch: pytest.MonkeyPatch, write: object
) -> None:
    write(tmp_path / "hub" / "datasets" / "mteb" / "Colours", videos, CAPTIONS)  # type: ignore[operator]
    with repository_hub(tmp_path / "hub", monkeypatch, tmp_path / "hub-cache"):
        command = ["evaluate", "small", "--from-hub", "mteb/Colours", "--json"]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
    record = json.loads(result.stdout)
    assert record["protocol"] == "mteb--Colours test (3 texts x 3 videos)"
    assert record["t2v"]["R@1"] == pytest.approx(100)


def test_a_folder_in_the_same_layout_is_unpacked_once(tmp_path: Path, videos: list[Path]) -> None:
    source = write_pairs(tmp_path / "MSR-VTT", videos, CAPTIONS)
    for number in (2, 3):
        name = f"test-0000{number}-of-00004.parquet"
        write_table(source / "data" / name, {"video": [], "caption": []})
    folder = unpack_hub_dataset(str(source))
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    assert [row["captions"] for row in rows] == [[caption] for caption in CAPTIONS]
    assert [(folder / row["video"]).read_bytes() for row in rows] == [
        video.read_bytes() for video in videos
    ]
    before = (folder / "captions.jsonl").stat().st_mtime_ns
    assert unpack_hub_dataset(str(source)) == folder
    assert (folder / "captions.jsonl").stat().st_mtime_ns == before
    # A change of any file unpacks again.
    write_table(
        source / "data" / "test-00000-of-00002.parquet", {"video": videos[:1], "caption": ["red"]}
    )
    changed = unpack_hub_dataset(str(source)) / "captions.jsonl"
    assert json.loads(changed.read_text().splitlines()[0])["captions"] == ["red"]


def test_rows_with_one_video_are_its_captions(tmp_path: Path, videos: list[Path]) -> None:
    """Copies of a video as candidates would push each other down the ranking."""
    captions = ["red", "green", "a red wall", "blue"]
    source = write_pairs(tmp_path / "pairs", [*videos[:2], videos[0], videos[2]], captions)
    folder = unpack_hub_dataset(str(source))
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    assert [row["captions"] for row in rows] == [["red", "a red wall"], ["green"], ["blue"]]
    assert len(list((folder / "videos").iterdir())) == 3


def test_captions_of_other_names_and_a_corpus_shared_by_all_splits_are_read(
    tmp_path: Path, videos: list[Path]
) -> None:
    """As in ``mteb/VALOR-32K``, and in tables whose corpus has a split of its own."""
    pairs = tmp_path / "VALOR-32K"
    write_table(
        pairs / "data" / "test-00000-of-00001.parquet", {"video": videos, "description": CAPTIONS}
    )
    three = write_three(tmp_path / "three", videos, CAPTIONS)
    for name in ("corpus", "queries"):
        file = three / name / "test-00000-of-00001.parquet"
        file.rename(file.with_name(f"{name}-00000-of-00001.parquet"))
    # Training pairs are never taken for the missing part of another split.
    write_table(
        three / "data" / "train-00000-of-00001.parquet", {"video": videos, "caption": ["no"] * 3}
    )
    for source in (pairs, three):
        folder = unpack_hub_dataset(str(source))
        rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
        assert [row["captions"] for row in rows] == [[caption] for caption in CAPTIONS]


def test_only_relevant_pairs_are_captions_and_other_videos_are_counted(
    tmp_path: Path, videos: list[Path]
) -> None:
    source = write_three(tmp_path / "three", videos, CAPTIONS)
    write_table(
        source / "qrels" / "test-00000-of-00001.parquet",
        {
            "query-id": ["q0", "q1", "q1", "q2"],
            "corpus-id": ["d0", "d1", "d1", "d0"],
            "score": [1, 2, 2, 0],
        },
    )
    folder = unpack_hub_dataset(str(source))
    rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
    assert [row["captions"] for row in rows] == [["a red wall"], ["green"], []]
    split = DATASETS["folder"].load(folder, "test")
    assert split.protocol.name.endswith("test (2 texts x 2 of 3 videos)")
    assert [entry.reason for entry in split.left_out] == ["no caption"]


@pytest.mark.parametrize(
    ("scores", "expected"), [(["1", "2.0", "0"], 2), ([1.5, None, math.nan], 1), ([[1]] * 3, None)]
)
def test_scores_of_any_type_are_read_or_refused(
    tmp_path: Path, videos: list[Path], scores: list[Any], expected: int | None
) -> None:
    source = write_three(tmp_path / "three", videos, CAPTIONS)
    names = [f"{number}" for number in range(3)]
    write_table(
        source / "qrels" / "test-00000-of-00001.parquet",
        {
            "query-id": [f"q{name}" for name in names],
            "corpus-id": [f"d{name}" for name in names],
            "score": scores,
        },
    )
    if expected is None:
        with pytest.raises(DatasetError, match=r"row 0 of qrels has the score \[1\]; expected a"):
            unpack_hub_dataset(str(source))
        return
    split = DATASETS["folder"].load(unpack_hub_dataset(str(source)), "test")
    assert split.texts == CAPTIONS[:expected]


def test_a_folder_unpacked_by_another_version_is_not_used(
    tmp_path: Path, videos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_pairs(tmp_path / "pairs", videos, CAPTIONS)
    monkeypatch.setattr(hub_dataset, "VERSION", 1)
    folder = unpack_hub_dataset(str(source))
    monkeypatch.undo()
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    assert unpack_hub_dataset(str(source)) != folder


def test_videos_without_queries_count_against_the_limit(
    tmp_path: Path, videos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_three(tmp_path / "three", videos, CAPTIONS)
    keys = ["d0", "d1", "d2", *(f"{number:09d}" for number in range(97))]
    write_table(
        source / "corpus" / "test-00000-of-00001.parquet", {"id": keys, "video": videos[:1] * 100}
    )
    # Of three videos and three captions, but not of 97 more ids.
    monkeypatch.setattr(hub_dataset, "MIN_BYTES", 3 * 4096 + 97 * 256)
    monkeypatch.setattr(hub_dataset, "MAX_EXPANSION", 0)
    with pytest.raises(DatasetError, match=r"row \d+ of corpus: videos and captions take"):
        unpack_hub_dataset(str(source))


def test_names_of_splits_are_whole(tmp_path: Path, videos: list[Path]) -> None:
    """``test_1k`` is not a part of ``test``, whose videos would be there twice."""
    source = write_pairs(tmp_path / "pairs", videos, CAPTIONS)
    name = "test_1k-00000-of-00001.parquet"
    write_table(source / "data" / name, {"video": videos[:1], "caption": ["a wall"]})
    for split, expected in (("test", CAPTIONS), ("test_1k", ["a wall"])):
        folder = unpack_hub_dataset(str(source), split)
        rows = [json.loads(line) for line in (folder / "captions.jsonl").read_text().splitlines()]
        assert [row["captions"] for row in rows] == [[caption] for caption in expected]
        # Their names need not be those of your own data.
        loaded = DATASETS["folder"].load(folder, split)
        assert loaded.texts == expected
        assert f" {split} (" in loaded.protocol.name
        with pytest.raises(UsageError, match="no split 'validation'"):
            DATASETS["folder"].load(folder, "validation")


def test_the_folder_above_is_unpacked_inside_the_cache(
    tmp_path: Path, videos: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_pairs(tmp_path / "MSR-VTT", videos, CAPTIONS)
    monkeypatch.chdir(source / "data")
    folder = unpack_hub_dataset("..").resolve()
    assert folder.parent.parent == cache / "datasets"
    assert (folder / "captions.jsonl").is_file()


def test_what_cannot_be_read_is_named(tmp_path: Path, videos: list[Path]) -> None:
    def fails(name: str, message: str, **options: str) -> None:
        with pytest.raises(DatasetError, match=message):
            unpack_hub_dataset(str(tmp_path / name), **options)

    write_pairs(tmp_path / "pairs", videos, CAPTIONS)
    fails("pairs", "no split 'val': it has test", split="val")
    fails("nowhere", "no such folder")
    (tmp_path / "bare").mkdir()
    fails("bare", "it has no Parquet file")
    broken = tmp_path / "broken" / "data" / "test-0.parquet"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"PAR1 not a table")
    fails("broken", r"test-0\.parquet: not a readable Parquet table")
    write_table(tmp_path / "words" / "data" / "test-0.parquet", {"caption": ["a"], "id": ["b"]})
    fails("words", "expected a table with the columns video and caption.*it has data: caption, id")
    write_table(tmp_path / "empty" / "test-0.parquet", {"video": videos[:1], "caption": [" "]})
    fails("empty", "row 0 has no caption")
    write_table(tmp_path / "nothing" / "test-0.parquet", {"video": [], "caption": []})
    fails("nothing", "the split 'test' has no videos")
    damaged = write_pairs(tmp_path / "damaged", videos, CAPTIONS)
    page = damaged / "data" / "test-00001-of-00002.parquet"
    content = bytearray(page.read_bytes())
    content[4:400] = bytes(396)  # The head of the first page; the footer is whole.
    page.write_bytes(content)
    fails("damaged", r"test-00001-of-00002\.parquet: not a readable Parquet table")
    three = write_three(tmp_path / "three", videos, CAPTIONS)
    write_table(
        three / "qrels" / "test-00000-of-00001.parquet",
        {"query-id": ["q9"], "corpus-id": ["d0"], "score": [1]},
    )
    fails("three", "names the query 'q9', which does not exist")
    write_table(
        three / "qrels" / "test-00000-of-00001.parquet",
        {"query-id": ["q0"], "corpus-id": ["d9"], "score": [1]},
    )
    fails("three", "names the video 'd9', which does not exist")


def test_a_video_outside_the_table_is_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    from hub_tables import VIDEO

    rows = pa.array([{"bytes": None, "path": "/etc/passwd"}], VIDEO)
    (tmp_path / "data").mkdir()
    table = pa.table({"video": rows, "caption": pa.array(["a secret"])})
    parquet.write_table(table, tmp_path / "data" / "test-0.parquet")
    with pytest.raises(DatasetError, match="row 0: the video is not in the table"):
        unpack_hub_dataset(str(tmp_path))


def test_an_unknown_dataset_and_options_that_do_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        repository_hub(tmp_path / "hub", monkeypatch, tmp_path / "hub-cache"),
        pytest.raises(DatasetError, match="mteb/Nothing: cannot be read from http"),
    ):
        unpack_hub_dataset("mteb/Nothing")
    command = ["evaluate", "small", "--from-hub", "mteb/Colours", "--data", "msrvtt"]
    result = CliRunner().invoke(app, command)
    assert "--from-hub includes its videos" in str(result.exception)


@pytest.mark.parametrize("write", [write_pairs, write_three])
def test_a_small_table_does_not_fill_the_disk(
    tmp_path: Path, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table that repeats one video of zeros is a thousand times smaller than its videos."""
    monkeypatch.setattr("eaglenet.research.data.hub_dataset.MIN_BYTES", 0)
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    video = tmp_path / "zeros.mp4"
    video.write_bytes(bytes(2**20))
    folder = write(tmp_path / "data", [video] * 40, ["a text"] * 40)
    size = sum(file.stat().st_size for file in folder.rglob("*.parquet"))
    assert size < 40 * 2**20 / 64
    with pytest.raises(DatasetError, match="64 times the size"):
        unpack_hub_dataset(str(folder))
    assert not list((tmp_path / "cache").rglob("*.mp4"))


@pytest.mark.parametrize("kind", ["pairs", "three"])
def test_a_caption_that_is_repeated_does_not_fill_memory(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parquet stores a repeated text once: 1 kB became gigabytes."""
    monkeypatch.setattr("eaglenet.research.data.hub_dataset.MIN_BYTES", 2**24)
    monkeypatch.setenv("EAGLENET_CACHE", str(tmp_path / "cache"))
    video, text, folder = tmp_path / "a.mp4", "a" * 2**16, tmp_path / "data"
    video.write_bytes(b"x")
    if kind == "pairs":
        write_pairs(folder, [video] * 1000, [text] * 1000)
    else:
        write_three(folder, [video], [text])
        documents = [f"d{number}" for number in range(1000)]
        relevance = {"query-id": ["q0"] * 1000, "corpus-id": documents, "score": [1] * 1000}
        write_table(folder / "qrels" / "test-00000-of-00001.parquet", relevance)
    with pytest.raises(DatasetError, match="64 times the size"):
        unpack_hub_dataset(str(folder))
