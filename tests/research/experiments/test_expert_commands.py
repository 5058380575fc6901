"""Methods over experts from the command line: train, compare, report their conditions."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eaglenet.cli.main import app
from eaglenet.core.errors import ConfigError
from eaglenet.research.experiments.build import build_method
from eaglenet.research.recipes import Recipe
from sampling import slow


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the demo world's experts."""
    output = tmp_path_factory.mktemp("experts") / "demo"
    run("data", "demo-experts", "--output", output, "--count", 24)
    return output


SMALL = ["--set", "data.val_videos=8", "--set", "training.epochs=1", "--set",
         "training.batch_size=16", "--seeds", "1"]  # fmt: skip


OLD = ("ce", "mmt", "t2vlad", "hit", "teachtext", "hgr", "supportset")


@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("old", [["ce"], slow([*OLD])])
def test_old_and_new_methods_stand_in_one_table_with_their_conditions(
    old: list[str], folder: Path, tmp_path: Path
) -> None:
    told = run("compare", *old, "clip4clip", "--data", "experts", "--root", folder,
               "--output", tmp_path, *SMALL)  # fmt: skip
    assert "Rows differ in features: compare only those that agree." in " ".join(told.split())
    report = (tmp_path / "report" / "report.md").read_text()
    assert "| ce/experts | that of the stored features | stored experts: colour" in report
    assert " | that of the stored features | stored frames and sentences |" in report
    rows = json.loads((tmp_path / "compare.json").read_text())["rows"]
    assert [row["label"] for row in rows] == [*old, "clip4clip"]
    assert {row["conditions"]["selection"] for row in rows} == {"the last epoch"}
    assert "| recipe | pre-training | features | split | epoch chosen on |" in report


def test_a_folder_of_other_experts_is_told_what_to_set(folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app,
        [
            "train",
            "ce",
            "--data",
            "msrvtt",
            "--set",
            f"data.root={folder}",
            "--set",
            f"data.options.test_root={folder}",
            "--set",
            "method_config.text_centres=2",
            "--output",
            str(tmp_path),
        ],
    )
    assert "encoder.config.experts=" in str(result.exception)
    wrong = ["train", "ce", "--data", "experts", "--set", f"data.root={folder}", "--set",
             "encoder.config.words_dim=9", "--set", "method_config.text_centres=2",
             "--output", str(tmp_path)]  # fmt: skip
    assert "encoder.config.words_dim=24" in str(CliRunner().invoke(app, wrong).exception)


def test_a_method_that_reads_no_experts_says_so() -> None:
    xpool = Recipe("xpool", "experts").build()
    experiment = dataclasses.replace(xpool, encoder=Recipe("ce", "experts").build().encoder)
    with pytest.raises(ConfigError, match=r"encoder\.kind=features"):
        build_method(experiment)
