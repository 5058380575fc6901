"""Moments against annotated spans, with numbers worked out by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import DatasetError, UsageError
from eaglenet.research.data.annotation_files import MomentText, read_moments
from eaglenet.research.evaluation.moments import (
    PRECISION_THRESHOLDS,
    average_precision,
    evaluate_store,
    moment_metrics,
    span_ious,
    text_iou,
)
from eaglenet.search.engine import Engine
from synthetic_store import BagMethod, make_store

DIDEMO = [
    {
        "num_segments": 6,
        "description": "the man in the hat briefly bends over the machine",
        "times": [[1, 1], [1, 1], [1, 1], [0, 0]],
        "video": "35034348999@N01_6060447507_dc1a90b8ef.mov",
        "annotation_id": 49152,
    }
]
QVHIGHLIGHTS = {
    "qid": 2579,
    "query": "A girl and her mother cooked while talking with each other on facetime.",
    "duration": 150,
    "vid": "NUsG9BgSes0_210.0_360.0",
    "relevant_windows": [[82, 150], [0, 10]],
    "relevant_clip_ids": [41, 42],
    "saliency_scores": [[2, 3, 3]],
}
ACTIVITYNET = {
    "v_QOlSCBRmfWY": {
        "duration": 82.73,
        "timestamps": [[0.83, 19.86], [60.81, 17.37]],
        "sentences": ["A young woman is seen standing in a room.", " The girl dances around."],
    }
}
CHARADES = "AO8RW 0.0 6.9##a person is putting a book on a shelf.\n3MSZA 30.4 24.3##light on\n"


def test_iou_of_spans_equals_numbers_worked_out_by_hand() -> None:
    moments = np.array([[0.0, 10.0], [10.0, 10.0]])
    spans = np.array([[0.0, 10.0], [5.0, 15.0], [10.0, 20.0], [10.0, 10.0]])
    expected = [[1.0, 1 / 3, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    assert span_ious(moments, spans) == pytest.approx(np.array(expected))


def test_three_of_four_annotators_decide_for_didemo() -> None:
    text = MomentText(
        "video", "text", ((5.0, 10.0), (5.0, 10.0), (5.0, 10.0), (0.0, 5.0)), num_annotators=3
    )
    assert text_iou((5.0, 10.0), text) == 1.0
    assert text_iou((0.0, 10.0), text) == pytest.approx(0.5)
    assert text_iou((0.0, 5.0), text) == pytest.approx(1 / 3)


def test_any_of_several_windows_will_do() -> None:
    assert text_iou((0.0, 10.0), MomentText("video", "text", ((82.0, 150.0), (0.0, 10.0)))) == 1.0


def test_average_precision_equals_numbers_worked_out_by_hand() -> None:
    spans = [(0.0, 10.0), (20.0, 30.0)]
    # Right, a repetition of it, right: precisions 1 and 2/3 at recalls 1/2 and 1.
    ranked = [(0.0, 10.0), (0.0, 9.0), (20.0, 30.0)]
    assert average_precision(ranked, spans, 0.5) == pytest.approx(0.5 + 0.5 * 2 / 3)
    # A better match for the second span does not take the first one's place.
    assert average_precision([(50.0, 60.0), (20.0, 29.0)], spans, 0.9) == pytest.approx(0.25)
    assert average_precision([], spans, 0.5) == 0.0


def test_a_span_on_which_annotators_agree_counts_once() -> None:
    text = MomentText("video", "text", ((5.0, 10.0),) * 4, num_annotators=3)
    assert moment_metrics([text], [[(5.0, 10.0)]]).mean_average_precision == 100
    other = MomentText("video", "text", ((5.0, 10.0),) * 3 + ((0.0, 5.0),), num_annotators=3)
    assert moment_metrics([other], [[(5.0, 10.0)]]).mean_average_precision == 50


def test_metrics_count_a_text_without_moments_as_zero() -> None:
    texts = [MomentText("a", "one", ((0.0, 10.0),)), MomentText("b", "two", ((0.0, 10.0),))]
    metrics = moment_metrics(texts, [[(0.0, 5.0)], []])
    assert str(metrics).endswith("note: 2 texts are too few for recalls to mean much")
    assert not moment_metrics(5 * texts, 5 * [[(0.0, 5.0)], []]).notes
    assert dict(metrics.recalls) == {"R@1 IoU=0.3": 50, "R@1 IoU=0.5": 50, "R@1 IoU=0.7": 0}
    assert metrics.mean_iou == pytest.approx(25)
    # Only the first of the ten thresholds, 0.5, is reached.
    assert metrics.mean_average_precision == pytest.approx(100 / len(PRECISION_THRESHOLDS) / 2)
    assert (metrics.num_texts, metrics.num_videos) == (2, 2)


def test_nothing_to_evaluate_is_an_error() -> None:
    with pytest.raises(UsageError, match="no annotated text"):
        moment_metrics([], [])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(
            json.dumps(DIDEMO),
            MomentText(
                "35034348999@N01_6060447507_dc1a90b8ef",
                "the man in the hat briefly bends over the machine",
                ((5.0, 10.0), (5.0, 10.0), (5.0, 10.0), (0.0, 5.0)),
                3,
            ),
            id="didemo",
        ),
        pytest.param(
            json.dumps(QVHIGHLIGHTS) + "\n",
            MomentText(
                "NUsG9BgSes0_210.0_360.0",
                "A girl and her mother cooked while talking with each other on facetime.",
                ((82.0, 150.0), (0.0, 10.0)),
            ),
            id="qvhighlights",
        ),
        pytest.param(
            CHARADES,
            MomentText("AO8RW", "a person is putting a book on a shelf.", ((0.0, 6.9),)),
            id="charades",
        ),
        pytest.param(
            json.dumps(ACTIVITYNET),
            MomentText(
                "v_QOlSCBRmfWY", "A young woman is seen standing in a room.", ((0.83, 19.86),)
            ),
            id="activitynet",
        ),
    ],
)
def test_published_formats_are_recognised_and_read(
    tmp_path: Path, content: str, expected: MomentText
) -> None:
    path = tmp_path / "annotations"
    path.write_text(content)
    assert read_moments(path)[0] == expected


@pytest.mark.parametrize("content", [CHARADES, json.dumps(ACTIVITYNET)])
def test_spans_that_are_published_backwards_are_turned_and_reported(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "annotations"
    path.write_text(content)
    start, end = read_moments(path)[1].spans[0]
    assert start < end
    (message,) = caplog.messages
    where = "line 2" if content == CHARADES else "video "
    assert message.startswith(f"1 span ends before the start, read the other way round: {where}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "unknown format"),
        ("nonsense", "unknown format"),
        ("[]", "no annotated moment"),
        ("[1, 2]", "entry 0"),
        ('[{"video": "a"}]', "entry 0 has no 'times'"),
        ('[{"video": "a", "description": "b", "times": []}]', "entry 0: no span"),
        ('[{"video": "a", "description": "b", "times": [[3]]}]', "entry 0"),
        ('[{"video": "a", "description": "b", "times": [["x", "y"]]}]', "entry 0"),
        ('{"a": {"timestamps": [[0, 1]], "sentences": []}}', "video 'a'"),
        ('{"a": {"timestamps": [[0, NaN]], "sentences": ["b"]}}', "annotations.json"),
        ('{"a": {"timestamps": [[-5, 1]], "sentences": ["b"]}}', "video 'a': invalid span -5"),
        ('{"vid": "a", "query": "b", "relevant_windows": [[5, 1]]}', "line 1: invalid span"),
        ('{"vid": "a", "query": "b"}', "line 1: no 'relevant_windows'"),
        ("a b##c", "line 1 is not"),
        ("a 1 2##c\nb##c", "line 2 is not"),
        ("a 1 2##c\na x 2##c", "line 2: could not"),
        ("[" * 5000, "annotations.json"),
    ],
)
def test_broken_annotations_are_refused_with_their_place(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "annotations.json"
    path.write_text(content)
    with pytest.raises(DatasetError, match=r"annotations\.json") as error:
        read_moments(path)
    assert message in str(error.value)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="qvhighlights"):
        read_moments(tmp_path / "none", "tacos")


def test_each_video_of_a_store_is_searched_for_its_own_texts(tmp_path: Path) -> None:
    bag = BagMethod()
    make_store(tmp_path / "store", bag, num_files=3)
    engine = Engine.open(tmp_path / "store", bag)
    (hit,) = engine.search("red car", k=1, path="/videos/1.mp4")
    span = (hit.moment.start, hit.moment.end)
    texts = [
        MomentText("1", "red car", (span,)),
        MomentText("2", "dog", ((900.0, 901.0),)),
        MomentText("elsewhere", "dog", ((0.0, 1.0),)),
        MomentText("2", " ", ((0.0, 1.0),)),
    ]
    metrics = evaluate_store(engine, texts)
    assert metrics.num_blank_texts == 1
    assert metrics.notes[1:] == ("left out 1 annotation without a text",)
    assert metrics.recalls["R@1 IoU=0.7"] == 50
    assert (metrics.num_texts, metrics.num_videos) == (2, 2)
    assert metrics.missing_videos == ("elsewhere",)
    with pytest.raises(UsageError, match="no annotated text to evaluate: 1 annotation has no text"):
        evaluate_store(engine, texts[3:])


def test_videos_of_one_name_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bag = BagMethod()
    make_store(tmp_path / "store", bag, num_files=3)
    engine = Engine.open(tmp_path / "store", bag)
    texts = [MomentText(name, "red car", ((0.0, 1.0),)) for name in ("1", "2")]
    assert evaluate_store(engine, texts).ambiguous_videos == ()
    files = engine.snapshot.files()
    groups = [["/videos/0.mp4", "/copy/0.mp4"], ["/videos/1.mp4"], ["/videos/2.mp4", "/b/1.mp4"]]
    monkeypatch.setattr(type(engine.snapshot), "files", lambda *_: replace(files, paths=groups))
    metrics = evaluate_store(engine, texts)
    assert metrics.ambiguous_videos == ("1",)
    assert "1 video searched in one of several files of that name (first: 1)" in str(metrics)


def test_the_command_prints_the_metrics(tmp_path: Path) -> None:
    make_store(tmp_path / "store", BagMethod())
    path = tmp_path / "charades.txt"
    path.write_text("nowhere 0.0 6.9##a person\n")
    arguments = ["evaluate", str(tmp_path / "store"), "--moments", str(path)]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, UsageError)
    assert "no annotated text" in str(result.exception)


def test_stores_and_run_folders_are_told_apart(tmp_path: Path) -> None:
    make_store(tmp_path / "store", BagMethod())
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "store")])
    assert isinstance(result.exception, UsageError)
    assert "store is a store; score the moments found in it with --moments" in str(result.exception)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "experiment.json").write_text("{}")
    command = ["evaluate", str(tmp_path / "run"), "--moments", str(tmp_path / "a.json")]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, UsageError)
    assert "run is a run folder; --moments scores a store" in str(result.exception)


@pytest.mark.parametrize(
    "options", [["--hubness"], ["--noise-seeds", "3"], ["--precision", "bf16"], ["--sinkhorn", "5"]]
)
def test_options_of_scoring_are_not_ignored(tmp_path: Path, options: list[str]) -> None:
    command = ["evaluate", str(tmp_path), "--moments", str(tmp_path / "a.json"), *options]
    result = CliRunner().invoke(app, command)
    assert "leave out options of scoring" in str(result.exception)
