"""Reports from run folders, whole and half-written ones."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import UsageError
from eaglenet.core.types import Clips, Tokens
from eaglenet.research.data.sources import Source
from eaglenet.research.evaluation import figures as figures_module
from eaglenet.research.evaluation.document import make_table
from eaglenet.research.evaluation.figures import (
    Curve,
    QualitativeExample,
    RetrievedVideo,
    choose_queries,
    curves_figure,
    make_examples,
    percent_range,
    qualitative_figure,
    recall_against_time_figure,
)
from eaglenet.research.evaluation.latex import LatexTable, escape_latex, find_marks
from eaglenet.research.evaluation.paper import recall_against_time
from eaglenet.research.evaluation.report import write_report
from eaglenet.research.evaluation.run_records import group_runs, read_runs

PNG = b"\x89PNG"
PDF = b"%PDF"


with_blank_figures = pytest.mark.usefixtures("blank_figures")


def metrics(recall: float, protocol: str = "demo world (8 texts x 4 videos)") -> dict:
    side = {"R@1": recall, "R@5": recall + 10, "R@10": recall + 20, "MdR": 2.0, "MnR": 3.5}
    return {"protocol": protocol, "t2v": side, "v2t": side, "Rsum": 6 * recall + 60}


def make_run(
    folder: Path,
    name: str = "eaglenet/demo",
    seed: int = 0,
    recall: float = 40.0,
    *,
    finished: bool = True,
    rate: float = 0.1,
) -> None:
    folder.mkdir(parents=True)
    experiment = {
        "name": name,
        "method": name.split("/")[0],
        "training": {"seed": seed, "lr_head": rate},
    }
    (folder / "experiment.json").write_text(json.dumps(experiment))
    manifest = {
        "experiment": name,
        "commit": "0123456789abcdef",
        "versions": {"torch": "2.11"},
        "hardware": {"processor": "a processor"},
        "data": {"val": {"videos_found": 4, "videos_missing": 1}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    events = [{"event": "step", "step": step, "total": 5.0 / step} for step in range(1, 6)]
    events += [{"event": "evaluation", "step": 5, "epoch": 1, **metrics(recall)}]
    (folder / "log.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    if finished:
        result = {
            "experiment": name,
            "method": experiment["method"],
            "seed": seed,
            "selection": "the epoch was chosen on the validation split",
            "metrics": metrics(recall),
        }
        (folder / "result.json").write_text(json.dumps(result))


def test_seeds_of_one_recipe_are_joined_and_other_settings_are_not(tmp_path: Path) -> None:
    for seed, recall in enumerate((40.0, 42.0, 44.0)):
        make_run(tmp_path / f"run{seed}", seed=seed, recall=recall)
    make_run(tmp_path / "other", seed=0, recall=50.0, rate=0.2)
    runs, broken = read_runs([tmp_path])
    assert not broken
    groups = group_runs(runs)
    assert sorted(len(group.runs) for group in groups) == [1, 3]
    assert any("training.lr_head=" in group.label for group in groups)


def test_a_copied_run_is_not_another_seed(tmp_path: Path) -> None:
    make_run(tmp_path / "first", seed=3)
    make_run(tmp_path / "second", seed=3)
    runs, broken = read_runs([tmp_path])
    assert [run.folder.name for run in runs] == ["first"]
    assert "the same recipe, settings and seed as" in broken[0].reason


def test_a_run_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    make_run(tmp_path / "first")
    (tmp_path / "link").symlink_to(tmp_path / "first")
    runs, broken = read_runs([tmp_path / "first", tmp_path, tmp_path / "first" / ".." / "first"])
    assert ([run.folder.name for run in runs], broken) == (["first"], [])


def test_groups_have_different_labels(tmp_path: Path) -> None:
    """Reports look results up by label: one of two groups with the same label was lost."""
    settings = ({"data": {"options": {"window": "whole"}}}, {"data": {"options": {}}}, {})
    many = [{f"setting{number}": value for number in range(5)} for value in ("a", "b")]
    many[1] |= {f"setting{number}": "a" for number in range(4)}
    for number, changes in enumerate((*settings, *many)):
        make_run(tmp_path / f"run{number}")
        path = tmp_path / f"run{number}" / "experiment.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    groups = group_runs(read_runs([tmp_path])[0])
    assert len({group.label for group in groups}) == len(groups) == 5
    assert groups[1].label == "eaglenet/demo [no data.options.window]"


def test_the_report_shows_mean_and_spread_protocol_and_figures(tmp_path: Path) -> None:
    for seed, recall in enumerate((40.0, 42.0, 44.0)):
        make_run(tmp_path / f"run{seed}", seed=seed, recall=recall)
    timed = {**metrics(41.0), "seconds": {"score": 0.5}}
    (tmp_path / "run0" / "evaluation-test.json").write_text(json.dumps(timed))
    report = write_report([tmp_path], tmp_path / "report", title="Demo")
    text = report.markdown.read_text()
    assert "| eaglenet/demo | eaglenet | 3 | 42.0 +- 2.0 |" in text
    assert "Protocol: demo world (8 texts x 4 videos)" in text
    assert "chosen on the validation split" in text
    headings = [line for line in text.splitlines() if line.startswith("## ")]
    assert headings[:2] == [
        "## Results on the test split",
        "## Selected epoch, on the validation split",
    ]
    assert "val 4 found, 1 missing" in text
    assert "too few" not in text
    assert "## Seconds" in text
    assert "A100)" not in text  # Of the paper's data, on its machine.
    assert "| recipe | pre-training | features | split | epoch chosen on |" in text
    for name in ("loss", "recall", "recall_against_time"):
        assert (tmp_path / "report" / f"{name}.png").read_bytes().startswith(PNG)
        assert (tmp_path / "report" / f"{name}.pdf").read_bytes().startswith(PDF)
        assert f"]({name}.png)" in text
    figures = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert all((tmp_path / "report" / figure).is_file() for figure in figures)
    assert not report.unreadable_runs


@with_blank_figures
def test_a_split_of_few_videos_is_cautioned_against(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    few = metrics(41.0)
    few["v2t"] = few["v2t"] | {"queries": 4}
    (tmp_path / "run" / "evaluation-test.json").write_text(json.dumps(few))
    text = write_report([tmp_path], tmp_path / "report").markdown.read_text()
    assert text.count("Caution: 4 videos are too few for recalls to mean much.") == 1


@with_blank_figures
def test_seconds_of_different_splits_are_not_averaged(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(json.dumps(result | {"epoch_seconds": 7.0}))
    for split, seconds, is_stored in (("test", 8.0, False), ("val", 0.5, True)):
        record = metrics(41.0) | {
            "split": split,
            "protocol": f"{split} videos",
            "seconds": {"encode_text": 1.0, "score": seconds},
            "stored_features": is_stored,
        }
        (tmp_path / "run" / f"evaluation-{split}.json").write_text(json.dumps(record))
    text = write_report([tmp_path], tmp_path / "report").markdown.read_text()
    assert "| eaglenet/demo | eaglenet | test videos | 7.00 | 9.00 | 8.00 |" in text
    assert "| eaglenet/demo | eaglenet | val videos | 7.00 | 1.50 (head) | 0.50 |" in text


@with_blank_figures
def test_the_scores_of_the_selected_epoch_are_tabulated_once(tmp_path: Path) -> None:
    make_run(tmp_path / "run", recall=40.0)
    record = metrics(40.0) | {"split": "val"}
    (tmp_path / "run" / "evaluation-val.json").write_text(json.dumps(record))
    text = write_report([tmp_path], tmp_path / "report").markdown.read_text()
    assert "## Results on the validation split" in text
    assert "The epoch was chosen on the validation split." in text
    assert "## Selected epoch" not in text


@with_blank_figures
@pytest.mark.parametrize(("first", "other"), [("test", "val"), ("val", "test")])
def test_the_first_table_is_of_the_split_in_the_title(
    tmp_path: Path, first: str, other: str
) -> None:
    make_run(tmp_path / "run", recall=10.0)
    for split, recall in ((first, 20.0), (other, 30.0)):
        # The record names the split; a file name may lie.
        record = metrics(recall) | {"split": split}
        path = tmp_path / "run" / f"evaluation-{first if split == other else other}.json"
        path.write_text(json.dumps(record))
    report = write_report([tmp_path], tmp_path / "report", title=f"{first}", first_split=first)
    lines = report.markdown.read_text().splitlines()
    titles = {"test": "test split", "val": "validation split"}
    tables = [line for line in lines if line.startswith("| eaglenet/demo | eaglenet |")][:3]
    assert [row.split("|")[4].strip() for row in tables] == ["20.0", "30.0", "10.0"]
    headings = [line for line in lines if line.startswith("## ")]
    assert headings[0] == f"## Results on the {titles[first]}"
    assert headings[1] == f"## Results on the {titles[other]}"


@with_blank_figures
def test_missing_and_half_written_runs_are_named_and_not_fatal(tmp_path: Path) -> None:
    make_run(tmp_path / "whole")
    make_run(tmp_path / "unfinished", seed=1, finished=False)
    make_run(tmp_path / "torn", seed=2)
    with (tmp_path / "torn" / "log.jsonl").open("a") as log:
        log.write('{"event": "step", "st')
    (tmp_path / "torn" / "result.json").write_text('{"metrics": ')
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "manifest.json").write_text('{"hardware": [], "data": 3}')
    folders = [tmp_path / name for name in ("whole", "unfinished", "torn", "odd", "none")]
    report = write_report(folders, tmp_path / "report")
    text = report.markdown.read_text()
    assert [entry.reason for entry in report.unreadable_runs] == ["no such folder"]
    assert {run.folder.name for run in report.unfinished_runs} == {"unfinished", "torn", "odd"}
    assert "no result.json" in text
    assert "result.json cannot be read" in text
    assert "log.jsonl line 7 is broken" in text
    assert "| eaglenet/demo | eaglenet | 1 | 40.0 |" in text


def test_nothing_to_report_is_an_error_that_names_the_folders(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a run folder"):
        write_report([tmp_path], tmp_path / "report")


@with_blank_figures
def test_scores_of_different_protocols_never_share_a_table(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    make_run(tmp_path / "b", name="msrvtt")
    result = json.loads((tmp_path / "b" / "result.json").read_text())
    result["metrics"] = metrics(51.0, "MSR-VTT 1k-A (1,000 texts x 1,000 videos)")
    (tmp_path / "b" / "result.json").write_text(json.dumps(result))
    text = write_report([tmp_path], tmp_path / "report").markdown.read_text()
    assert text.count("Protocol:") == 2
    ours, _, published = text.partition("## The paper's numbers")
    assert "EagleNet (paper) | ViT-B/16 | 51.0" in published
    assert "(paper)" not in ours


@with_blank_figures
def test_the_command_writes_the_report_and_speaks_json(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    arguments = ["report", str(tmp_path / "run"), str(tmp_path / "none"), "--json"]
    result = CliRunner().invoke(app, [*arguments, "--output", str(tmp_path / "report")])
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert record["runs"] == 1
    assert record["unfinished_or_unreadable"][0]["why"] == "no such folder"
    assert (tmp_path / "report" / "report.md").exists()


def test_a_bar_in_a_cell_is_escaped() -> None:
    assert make_table(["a|b"], [["c"]]).startswith("| a\\|b |")


def clips_of(num_videos: int) -> Clips:
    frames = torch.arange(num_videos, dtype=torch.uint8)[:, None, None, None, None]
    return Clips(
        frames.expand(-1, 4, 3, 6, 8).contiguous(),
        torch.ones(num_videos, 4, dtype=torch.bool),
        torch.zeros(num_videos, 4),
    )


def test_examples_are_queries_on_which_the_runs_disagree() -> None:
    video_of_text = torch.tensor([0, 0, 1, 2, 3, 4])
    best = {
        "first": torch.tensor([[0, 1], [0, 1], [1, 0], [2, 0], [0, 3], [4, 0]]),
        "second": torch.tensor([[0, 1], [0, 1], [0, 1], [2, 0], [3, 0], [4, 0]]),
    }
    assert sorted(choose_queries(best, video_of_text, 2)) == [2, 4]
    assert len(choose_queries(best, video_of_text, 4)) == 4
    sentences, ids = [f"sentence {i}" for i in range(6)], [f"video{i}" for i in range(5)]
    gallery = Source(
        lambda rows: Tokens(rows[:, None], rows[:, None] >= 0),
        lambda rows: clips_of(5)[rows],
        video_of_text,
        sentences,
        ids,
        "toy",
    )
    examples = make_examples(best, gallery, 2)
    first = next(example for example in examples if example.query == "sentence 2")
    assert [video.is_right for video in first.videos["first"]] == [True, False]
    assert [video.is_right for video in first.videos["second"]] == [False, True]
    assert first.videos["second"][1].frames.unique().tolist() == [1]
    assert qualitative_figure(examples).png.startswith(PNG)


def test_figures_are_the_same_bytes_every_time() -> None:
    curve = Curve("loss", [1, 2, 3], [3.0, 2.0, 1.0])
    first, second = (
        curves_figure([curve], title="t", x_label="x", y_label="y", log_y=True) for _ in range(2)
    )
    assert first == second
    assert first.png.startswith(PNG)
    assert first.pdf.startswith(PDF)
    assert recall_against_time_figure({}, recall_against_time()).png.startswith(PNG)


def test_ticks_are_whole_epochs_and_labels_of_times_lie_apart_and_inside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Any] = []
    save = figures_module._save
    monkeypatch.setattr(
        figures_module, "_save", lambda figure: figures.append(figure) or save(figure)
    )
    curves_figure([Curve("run", [1, 2, 3], [4.0, 5.0, 6.0])], title="t", x_label="x", y_label="y")
    points = {"clip4clip/features/shared": (0.44, 45.0), "xpool/features/shared": (0.46, 100.0)}
    recall_against_time_figure({**points, "drl/features/shared": (0.48, 99.5)}, {})
    (epochs,), (times,) = (figure.axes for figure in figures)
    assert all(float(tick).is_integer() for tick in epochs.get_xticks())
    ticks = {text.get_text() for text in times.get_xticklabels(which="both")}
    assert {"0.2", "0.5", "1"} <= ticks
    assert not any("times" in tick for tick in ticks)
    times.figure.canvas.draw()  # At the resolution of the PNG, after the PDF was saved.
    frame = times.get_window_extent()
    boxes = [label.get_window_extent() for label in times.texts]
    assert all(frame.contains(*box.min) and frame.contains(*box.max) for box in boxes)
    assert all(not first.overlaps(second) for first, second in combinations(boxes, 2))


@pytest.mark.parametrize(
    ("given", "shown"),
    [((1.9, 2.1), (1.0, 3.0)), ((-0.05, 0.05), (0.0, 2.0)), ((20.0, 45.0), (20.0, 45.0))],
)
def test_an_axis_of_recall_is_not_finer_than_a_point_and_never_below_nothing(
    given: tuple[float, float], shown: tuple[float, float]
) -> None:
    assert percent_range(*given) == pytest.approx(shown)


def test_a_curve_of_recall_has_an_axis_of_recall() -> None:
    """One value alone had an axis from 1.900 to 2.100."""
    curve = Curve("run", [1], [2.0])
    plain = curves_figure([curve], title="t", x_label="x", y_label="y")
    assert curves_figure([curve], title="t", x_label="x", y_label="y", is_percent=True) != plain


def test_right_and_wrong_are_told_apart_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eaglenet.research.evaluation.figures.WRONG", "#1a9641")
    frames = torch.zeros(3, 3, 8, 8, dtype=torch.uint8)
    pictures = {
        qualitative_figure(
            [QualitativeExample("a", {"run": [RetrievedVideo("v", frames, is_right)]})]
        )
        for is_right in (True, False)
    }
    assert len(pictures) == 2


def test_a_figure_of_no_example_is_refused() -> None:
    with pytest.raises(UsageError, match="no example"):
        qualitative_figure([])


def test_runs_of_a_comparison_are_found_below_its_folder(tmp_path: Path) -> None:
    for method in ("one", "two"):
        for seed in range(2):
            folder = tmp_path / method / f"seed-{seed}"
            folder.parent.mkdir(exist_ok=True)
            make_run(folder, f"{method}/demo", seed=seed)
    runs, broken = read_runs([tmp_path])
    assert (len(runs), broken) == (4, [])


@with_blank_figures
def test_columns_over_datasets_join_runs_of_one_recipe(tmp_path: Path) -> None:
    """Rsum of table 2 adds nine recalls; the average of table 3 is over two datasets."""
    for dataset, recall in (("didemo", 30.0), ("msvd", 40.0), ("vatex", 50.0), ("msrvtt", 20.0)):
        name = f"xpool/{dataset}/clip-b16/paper"
        make_run(tmp_path / dataset, name, recall=recall)
        record = metrics(recall, protocol=f"{dataset} test")
        (tmp_path / dataset / "evaluation-test.json").write_text(json.dumps(record))
    make_run(tmp_path / "first", "eaglenet/msrvtt/clip-b16/paper/components=frl", recall=20.0)
    make_run(tmp_path / "second", "eaglenet/didemo/clip-b16/paper/components=frl", recall=40.0)
    for folder, recall in (("first", 20.0), ("second", 40.0)):
        path = tmp_path / folder / "evaluation-test.json"
        path.write_text(json.dumps(metrics(recall, protocol="x")))
    text = write_report([tmp_path], tmp_path / "out").markdown.read_text()
    rsum = 3 * (30 + 40 + 50) + 3 * 30
    assert f"{rsum:.1f}" in next(
        line
        for line in text.splitlines()
        if "| xpool/clip-b16/paper" in line and "30.0 | 40.0" in line
    )
    average = next(
        line for line in text.splitlines() if "| eaglenet/clip-b16/paper/components" in line
    )
    assert average.split("|")[-4:-1] == [" 30.0 ", " 40.0 ", " 50.0 "]


@with_blank_figures
def test_the_papers_tables_stand_beside_runs_on_their_data_with_their_slips(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "eaglenet/didemo/clip-b16/paper", recall=20.0)
    record = metrics(20.0, protocol="DiDeMo paragraphs") | {
        "seconds": {"encode_text": 1.0, "encode_video": 4.0, "score": 0.25}
    }
    (tmp_path / "run" / "evaluation-test.json").write_text(json.dumps(record))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    (tmp_path / "run" / "result.json").write_text(json.dumps(result | {"epoch_seconds": 12.5}))
    text = write_report([tmp_path], tmp_path / "out").markdown.read_text()
    assert "82.7 is R@50" in text
    assert "EagleNet (paper) | ViT-B/16 | 51.5" in text
    assert "MMT: without HowTo100M" not in text  # that row stands on MSR-VTT alone
    seconds = next(line for line in text.splitlines() if "12.50" in line)
    assert seconds.split("|")[-4:-1] == [" 12.50 ", " 5.25 ", " 0.25 "]


@with_blank_figures
def test_approximate_methods_are_marked_wherever_they_are_shown(tmp_path: Path) -> None:
    make_run(tmp_path / "run", "rap/demo", recall=20.0)
    make_run(tmp_path / "other", "xpool/demo", recall=30.0)
    text = write_report([tmp_path], tmp_path / "out").markdown.read_text()
    assert "rap (approximate)" in text
    assert "xpool (approximate)" not in text
    latex = (tmp_path / "out" / "tables.tex").read_text()
    assert r"rap$^\dagger$ &" in latex
    assert "A dagger marks methods implemented from their abstracts." in latex
    from dataclasses import fields

    from eaglenet.research.experiments.campaign import TrialRow, approximate_lines

    unset = dict.fromkeys(field.name for field in fields(TrialRow))
    rows = [TrialRow(**{**unset, "label": name, "method": name}) for name in ("rap", "xpool")]
    assert "abstracts: rap;" in approximate_lines(rows)[0]


@with_blank_figures
def test_tables_for_a_paper_mark_the_best_and_escape_names(tmp_path: Path) -> None:
    for seed, recalls in enumerate(((40.0, 41.0, 30.0), (42.0, 43.0, 30.0))):
        for name, recall in zip(("eaglenet", "xpool", "video_colbert"), recalls, strict=True):
            make_run(tmp_path / f"{name}-{seed}", f"{name}/demo", seed, recall)
    report = write_report([tmp_path], tmp_path / "out")
    latex = report.latex.read_text()
    assert report.latex == tmp_path / "out" / "tables.tex"
    lines = {line.partition(" & ")[0]: line for line in latex.splitlines()}
    assert lines["xpool"].startswith(r"xpool & \textbf{42.0}$_{\pm 1.4}$ & \textbf{52.0}")
    assert lines["eaglenet"].startswith(r"eaglenet & \underline{41.0}$_{\pm 1.4}$")
    # Escaped, not marked, and no column of equal values has marks.
    row = lines[r"video\_colbert"]
    assert row.startswith(r"video\_colbert & 30.0$_{\pm 0.0}$")
    assert all(" 2.0$_" in line for name, line in lines.items() if name in ("xpool", "eaglenet"))
    # Both directions and Rsum.
    assert row.count("&") == 11
    assert r"\multicolumn{5}{c}{text to video} & \multicolumn{5}{c}{video to text}" in latex
    assert "deviation over 2 seeds. Best in bold, second best underlined." in latex
    assert latex.count(r"\toprule") == latex.count(r"\bottomrule") == latex.count(r"\label{tab:")
    assert "dagger" not in latex
    for begin in re.findall(r"\\begin\{(.+?)\}", latex):
        assert latex.count(f"\\begin{{{begin}}}") == latex.count(f"\\end{{{begin}}}")


def test_special_characters_of_names_are_escaped() -> None:
    assert escape_latex("a_b & 50% #1 $x {y} ~^<>|\\") == (
        r"a\_b \& 50\% \#1 \$x \{y\} \textasciitilde{}\textasciicircum{}\textless{}"
        r"\textgreater{}\textbar{}\textbackslash{}"
    )
    assert "\n" not in escape_latex("two\nlines")
    assert escape_latex("---") == "-{}-{}-"  # Without ligatures.
    # The line break before a row reads [ and * as its options.
    for name in ("[1] net", "*net"):
        rows = [["a", "1"], [escape_latex(name), "2"]]
        assert f"\n{{}}{name} & 2" in LatexTable("", ["method", "R@1"], rows).format("table")


def test_the_lowest_median_rank_is_the_best() -> None:
    assert find_marks([2.0, 1.04, 1.0, 3.0], is_lower_better=True) == [
        "", "textbf", "textbf", "",
    ]  # fmt: skip
    assert find_marks([2.0, 1.0, 2.04, 3.0], is_lower_better=True) == [
        "underline", "textbf", "underline", "",
    ]  # fmt: skip
    assert find_marks([50.0], is_lower_better=False) == [""]
    assert find_marks([50.0, 40.0], is_lower_better=False) == ["textbf", ""]
