"""docs/reproduce.md has a block for every row of tables 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from eaglenet.methods import METHODS
from eaglenet.research.recipes.paper_rows import METHODS_OF_LABELS, paper_recipes

PAGE = (Path(__file__).parents[3] / "docs" / "reproduce.md").read_text("utf-8")
ROWS = [(row.label, dataset, recipe) for row, dataset, recipe in paper_recipes()]


@pytest.mark.parametrize(("label", "dataset", "recipe"), ROWS, ids=lambda value: str(value))
def test_every_row_has_its_commands(label: str, dataset: str, recipe: str) -> None:
    lines = PAGE.splitlines()
    command = next(
        i for i, line in enumerate(lines) if line.startswith(f"eaglenet train {recipe} ")
    )
    assert lines[command - 1].startswith(f"# {label}")
    assert lines[command + 1].startswith(f"eaglenet evaluate runs/{recipe}")
    is_approximate = "approximate" in METHODS[METHODS_OF_LABELS[label]].checked
    assert ("approximate" in lines[command - 1]) == is_approximate
