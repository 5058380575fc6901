"""Every row of the paper's tables 1 and 2 runs with one command."""

from __future__ import annotations

import pytest

from eaglenet.research.recipes import RECIPES, build_recipe
from eaglenet.research.recipes.paper_rows import METHODS_OF_LABELS, paper_recipes, recipe_of


def test_every_row_of_tables_1_and_2_has_a_recipe() -> None:
    missing = [
        (row.label, row.group, recipe)
        for row, _, recipe in paper_recipes()
        if recipe not in RECIPES
    ]
    assert missing == []


def test_a_rows_recipe_runs_its_method_on_its_dataset() -> None:
    for row, dataset, recipe in paper_recipes():
        experiment = build_recipe(recipe)
        assert experiment.method == METHODS_OF_LABELS[row.label]
        assert experiment.data.dataset in (dataset, "features")
        assert recipe.startswith(dataset)


@pytest.mark.parametrize(
    ("label", "group", "dataset", "expected"),
    [
        ("CE", "other", "msrvtt", "msrvtt-experts/ce"),
        ("Frozen", "other", "didemo", "didemo-b16/frozen"),
        ("HGR", "other", "vatex", "vatex-experts/hgr"),
        ("XPool", "ViT-B/32", "msvd", "msvd-b32/xpool"),
        ("EagleNet", "ViT-B/16", "vatex", "vatex-b16"),
    ],
)
def test_rows_are_found_by_their_names(label: str, group: str, dataset: str, expected: str) -> None:
    assert recipe_of(label, group, dataset) == expected
    assert expected in RECIPES
