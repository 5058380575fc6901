"""ActivityNet Captions, LSMDC, YouCook2, QVHighlights, Charades-STA and TGIF."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data import DATASETS, Split
from eaglenet.research.data.annotation_files import read_moments
from eaglenet.research.recipes import Recipe

WRITERS = {
    "activitynet": "activitynet",
    "lsmdc": "lsmdc",
    "youcook2": "youcook2",
    "qvhighlights": "qvhighlights",
    "charades-sta": "charades_sta",
    "tgif": "tgif",
}


def load(name: str, root: Path, files: Any, split: str, **options: Any) -> Split:
    return DATASETS[name].load(getattr(files, WRITERS[name])(root), split, **options)


@pytest.mark.parametrize(
    ("name", "texts", "protocol"),
    [
        (
            "activitynet",
            ["A woman dances. She stops.", "A weight is lifted."],
            "ActivityNet Captions val1 paragraph retrieval (2 texts x 2 videos)",
        ),
        ("lsmdc", ["A jet, far away, turns."], "LSMDC16 public test (1 text x 1 video)"),
        (
            "youcook2",
            ["pick the ends off the verdalago", "combine juice"],
            "YouCook2 validation clips (2 texts x 2 videos)",
        ),
        (
            "qvhighlights",
            ["A man holds food."],
            "QVHighlights partially relevant video retrieval (1 text x 1 video)",
        ),
        (
            "charades-sta",
            ["person turn a light on.", "person opens a door."],
            "Charades-STA partially relevant video retrieval (2 texts x 1 video)",
        ),
        ("tgif", ["a thing 1 moves.", "it moves again."], "TGIF (2 texts x 1 video)"),
    ],
)
def test_the_reported_split_and_its_protocol(
    tmp_path: Path, files: Any, name: str, texts: list[str], protocol: str
) -> None:
    split = load(name, tmp_path, files, "test")
    assert split.texts == texts
    assert split.protocol.name == protocol


@pytest.mark.parametrize("name", ["activitynet", "youcook2", "charades-sta"])
def test_validation_is_held_out_of_training_where_the_official_one_is_reported(
    tmp_path: Path, files: Any, name: str
) -> None:
    train, val = (load(name, tmp_path, files, split, hold_out=1) for split in ("train", "val"))
    whole = load(name, tmp_path, files, "train", hold_out=0)
    assert set(train.video_ids) | set(val.video_ids) == set(whole.video_ids)
    assert not set(train.video_ids) & set(val.video_ids)
    assert "held out of training" in val.protocol.name
    with pytest.raises(UsageError, match="hold_out=0 leaves no validation"):
        load(name, tmp_path, files, "val", hold_out=0)


@pytest.mark.parametrize(
    ("name", "file", "video_id"),
    [
        ("activitynet", "QOlSCBRmfWY.mkv", "v_QOlSCBRmfWY"),
        ("activitynet", "v_QOlSCBRmfWY.mp4", "v_QOlSCBRmfWY"),
        (
            "lsmdc",
            "3009_BATTLE_LOS_ANGELES_00.03.07.170-00.03.09.675.avi",
            "3009_BATTLE_LOS_ANGELES_00.03.07.170-00.03.09.675",
        ),
        ("youcook2", "xHr8X2Wpmno.webm", "xHr8X2Wpmno_1"),
        ("qvhighlights", "ROIMeBnMIMU_60.0_210.0.mp4", "ROIMeBnMIMU_60.0_210.0"),
        ("charades-sta", "3MSZA.mp4", "3MSZA"),
        ("tgif", "tumblr_b_500.gif", "tumblr_b_500"),
    ],
)
def test_files_are_found_by_the_names_they_are_published_under(
    tmp_path: Path, files: Any, name: str, file: str, video_id: str
) -> None:
    files.touch(tmp_path / "videos" / "deeper", file)
    (video,) = [
        video for video in load(name, tmp_path, files, "test").videos if video.video_id == video_id
    ]
    assert video.path is not None
    assert video.path.name == file


def test_a_clip_of_several_sentences_is_one_video_of_lsmdc(tmp_path: Path, files: Any) -> None:
    split = load("lsmdc", tmp_path, files, "train")
    assert [video.captions for video in split.videos] == [
        ("SOMEONE wakes.", "He sits."),
        ('He says "go".',),
    ]


def test_a_step_of_youcook2_is_a_window_and_an_empty_sentence_is_left_out(
    tmp_path: Path, files: Any
) -> None:
    split = load("youcook2", tmp_path, files, "train", hold_out=0)
    windows = {video.video_id: video.window for video in split.videos}
    assert windows["GLd3aX16zBg_1"] == (10.0, 18.0)
    assert [entry.video_id for entry in split.left_out] == ["4eWzsx1vAi8_1"]


def test_the_test_split_of_qvhighlights_may_be_the_file_with_its_windows(
    tmp_path: Path, files: Any
) -> None:
    root = files.qvhighlights(tmp_path)
    expected = DATASETS["qvhighlights"].load(root, "test").texts
    bare = root / "highlight_test_release.jsonl"
    with pytest.raises(DatasetError, match=r"those of the test split are in the file highlight_"):
        read_moments(bare)
    row = json.loads(bare.read_text()) | {"relevant_windows": [[70, 110], [2, 4]]}
    bare.unlink()
    whole = files.write_lines(root / "highlight_test_with_gt.jsonl", [json.dumps(row)])
    assert DATASETS["qvhighlights"].load(root, "test").texts == expected
    assert read_moments(whole)[0].spans == ((70, 110), (2, 4))


def test_line_separators_inside_a_text_end_no_line(tmp_path: Path) -> None:
    text = "a cook\u2028stirs\x0bsoup"
    row = {"vid": "a", "query": text, "relevant_windows": [[0, 2]]}
    lines = {"highlights.jsonl": json.dumps(row, ensure_ascii=False), "sta.txt": f"a 0 2##{text}"}
    for name, line in lines.items():
        (tmp_path / name).write_text(line + "\r\n", encoding="utf-8", newline="")
        assert [moment.text for moment in read_moments(tmp_path / name)] == [text]


def test_two_gifs_of_one_file_name_are_not_taken_for_each_other(tmp_path: Path, files: Any) -> None:
    root = files.tgif(tmp_path)
    urls = [line.split("\t")[0] for line in (root / "data/tgif-v1.0.tsv").read_text().splitlines()]
    files.write_lines(root / "data/splits/train.txt", [urls[0], urls[3]])
    split = DATASETS["tgif"].load(root, "train")
    assert split.texts == ["a thing 0 moves."]
    assert split.left_out[0].reason == "another address has the same file name"


def test_a_video_is_preferred_to_a_gif_of_the_same_name(tmp_path: Path, files: Any) -> None:
    files.touch(tmp_path / "videos", "3MSZA.gif", "3MSZA.mp4")
    (video,) = load("charades-sta", tmp_path, files, "test").videos
    assert video.path is not None
    assert video.path.name == "3MSZA.mp4"


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("activitynet", "val_1.json", "[1]", "val_1.json"),
        ("activitynet", "val_1.json", '{"v_a": {"sentences": []}}', "video 'v_a' has no"),
        ("activitynet", "val_1.json", '{\n"v_a": {\n', "line 3"),
        (
            "activitynet",
            "val_1.json",
            '{"v_a": {"timestamps": [[0, 1], [2, 3]], "sentences": ["a", null]}}',
            "video 'v_a': the text is NoneType, expected text",
        ),
        (
            "activitynet",
            "val_1.json",
            f'{{"v_a": {{"timestamps": [[0, 1{"0" * 400}]], "sentences": ["a"]}}}}',
            "video 'v_a': int too large",
        ),
        (
            "activitynet",
            "val_1.json",
            '{"v_\\ud800": {"timestamps": [[0, 1]], "sentences": ["a"]}}',
            "has a lone surrogate",
        ),
        (
            "lsmdc",
            "LSMDC16_challenge_1000_publictect.csv",
            "a\tb\tc\td\te\tf\na,b\n",
            "line 2 has 1 columns, expected 6 separated by tabs",
        ),
        ("youcook2", "youcookii_annotations_trainval.json", "{}", "under 'database'"),
        (
            "youcook2",
            "youcookii_annotations_trainval.json",
            '{"database": {"a": {"subset": "validation", "annotations": [{"id": 0}]}}}',
            "video 'a', annotation 0 needs the keys",
        ),
        (
            "youcook2",
            "youcookii_annotations_trainval.json",
            '{"database": {"a": {"subset": "validation", "annotations": [{"id": 0, "sentence": "x",'
            ' "segment": [9, 4]}]}}}',
            "invalid segment 9 to 4 s",
        ),
        (
            "youcook2",
            "youcookii_annotations_trainval.json",
            '{"database": {"\\ud800": {"subset": "validation", "annotations": [{"id": 0, '
            '"sentence": "x", "segment": [1, 4]}]}}}',
            "has a lone surrogate",
        ),
        (
            "youcook2",
            "youcookii_annotations_trainval.json",
            '{"database": {"a": {"subset": "validation", "annotations": [{"id": 0, "sentence": "x",'
            f' "segment": [1, 1{"0" * 400}]}}]}}}}}}',
            "video 'a', annotation 0 needs the keys",
        ),
        (
            "youcook2",
            "youcookii_annotations_trainval.json",
            '{"database": {"a": {"subset": "training", "annotations": []}}}',
            "no video has the subset 'validation'",
        ),
        ("qvhighlights", "highlight_test_release.jsonl", '{"vid": "a"}\n', "line 1 needs the keys"),
        (
            "qvhighlights",
            "highlight_test_release.jsonl",
            '{"vid": "a", "query": "b"}\n{"vid": 3, "query": "b"}\n',
            "line 2: the video is int",
        ),
        ("charades-sta", "charades_sta_test.txt", "a 1 2##c\nb 1##d\n", "line 2 is not"),
        ("tgif", "data/tgif-v1.0.tsv", "https://a/b.gif\tone\nhttps://a/c.gif\n", "line 2 has 1"),
    ],
)
def test_broken_annotations_name_the_place(
    tmp_path: Path, files: Any, name: str, file: str, content: str, message: str
) -> None:
    root = getattr(files, WRITERS[name])(tmp_path)
    (root / file).write_text(content)
    with pytest.raises(DatasetError) as error:
        DATASETS[name].load(root, "test")
    assert message in str(error.value)
    assert Path(file).name in str(error.value)


@pytest.mark.parametrize("name", WRITERS)
def test_the_check_counts_every_split(tmp_path: Path, files: Any, name: str) -> None:
    root = getattr(files, WRITERS[name])(tmp_path)
    takes_hold_out = "hold_out" in inspect.signature(DATASETS[name].load).parameters
    options = ["--set", "hold_out=1"] if takes_hold_out else []
    command = ["data", "check", name, "--root", str(root), "--json", *options]
    result = CliRunner().invoke(app, command)
    report = json.loads(result.stdout)
    assert result.exit_code == 3  # no video is there
    assert [split["name"] for split in report["splits"]] == ["train", "val", "test"]
    assert not report["overlaps"]
    assert not report["broken"]
    assert all(len(split["missing"]) == split["num_videos"] - len(split["left_out"])
               for split in report["splits"])  # fmt: skip


def test_paragraphs_and_long_videos_have_more_words_and_frames() -> None:
    shapes = {}
    for name in WRITERS:
        data = Recipe("eaglenet", name).build().data
        shapes[name] = (data.frames.num_frames, data.max_words)
    assert shapes.pop("activitynet") == (64, 64)
    assert shapes.pop("qvhighlights") == (64, 32)
    assert set(shapes.values()) == {(12, 32)}
    original = Recipe("clip4clip", "activitynet", protocol="original").build().data
    assert (original.frames.num_frames, original.max_words) == (64, 64)
