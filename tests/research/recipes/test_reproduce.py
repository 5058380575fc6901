"""docs/reproduce.md has a command for every row of tables 1 and 2, and it runs the right recipe."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from eaglenet.cli.options import find_recipe
from eaglenet.methods import METHODS
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.recipes import TABLES, paper_recipes
from eaglenet.research.recipes.paper_rows import METHODS_OF_LABELS

PAGE = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text("utf-8")
LINES = PAGE.splitlines()
ROWS = [name for name in paper_recipes() if name.startswith(("table1/", "table2/"))]
ROOTS = {"msrvtt": "MSRVTT", "didemo": "DIDEMO", "msvd": "MSVD", "vatex": "VATEX"}


@pytest.mark.parametrize("name", ROWS)
def test_every_row_has_its_command(name: str) -> None:
    recipe = paper_recipes()[name]
    index = next(i for i, line in enumerate(LINES) if line.startswith(f"eaglenet train {name} "))
    words = shlex.split(LINES[index])
    assert words[-2:] == ["--output", f"runs/{name}"]
    root = words[words.index("--root") + 1]
    assert root.startswith(ROOTS[recipe.data])
    # Stored features have no test split of their own.
    has_test_root = any(word.startswith("data.options.test_root=") for word in words)
    assert has_test_root == (recipe.tower == "experts")
    label, _, rest = LINES[index - 1].removeprefix("# ").partition(": ")
    value, _, axes = rest.partition("; ")
    assert f"eaglenet train {axes}" == recipe.command
    is_approximate = METHODS[recipe.method].is_approximate
    assert ("approximate" in label) == is_approximate
    assert METHODS_OF_LABELS[label.split(" (")[0]] == recipe.method
    assert float(value) == published(name, label.split(" (")[0])


def published(name: str, label: str) -> float | None:
    """The paper's text-to-video R@1 of a row."""
    size = re.search(r"-(b32|b16)$", name)
    group = {"b32": "ViT-B/32", "b16": "ViT-B/16"}[size.group(1)] if size else "other"
    if name.startswith("table1/"):
        return paper_tables()["msrvtt"].value(label, "t2v R@1", group)
    titles = {"didemo": "DiDeMo", "msvd": "MSVD", "vatex": "VATEX"}
    return paper_tables()["others"].value(label, f"{titles[name.split('/')[1]]} R@1", group)


def test_every_ablation_table_has_its_commands() -> None:
    for table in TABLES:
        for data, root in (("msrvtt", "MSRVTT"), ("didemo", "DIDEMO")):
            command = f"eaglenet ablate {table} --data {data} --root {root} --output "
            assert any(line.startswith(command) for line in LINES), command


def test_every_train_command_of_the_page_composes() -> None:
    for line in LINES:
        if line.startswith("eaglenet train "):
            find_recipe(shlex.split(line)[2], "", "", "", None).resolve()
