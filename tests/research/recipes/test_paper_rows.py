"""Every row of the paper's tables has a short name that expands to a command."""

from __future__ import annotations

import pytest

from eaglenet.core.errors import UnknownNameError
from eaglenet.research.evaluation.paper import paper_tables
from eaglenet.research.recipes import paper_recipes
from eaglenet.research.recipes.recipe import METHODS_OF_LABELS, TABLE_NUMBERS


def test_every_row_builds_its_method_on_its_dataset() -> None:
    for name in paper_recipes():
        recipe = paper_recipes()[name]
        experiment = recipe.build()
        assert experiment.data.dataset in (recipe.data, "features")
        if name.startswith(("table1/", "table2/")):
            assert experiment.method in METHODS_OF_LABELS.values()


def test_every_table_of_the_paper_has_its_rows() -> None:
    names = list(paper_recipes())
    for table, number in TABLE_NUMBERS.items():
        rows = [name for name in names if name.startswith(f"table{number}/")]
        count = len(paper_tables()[table].rows)
        if table == "msrvtt":
            assert len(rows) == count
        elif table == "others":
            assert len(rows) == 72
        elif table == "time":
            assert len(rows) == count - 1  # UCoFiA has two times
        else:
            assert len(rows) == 2 * count


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("table1/ce", "ce --data msrvtt --tower experts"),
        ("table2/didemo/frozen", "frozen --data didemo --tower clip-b16 --protocol original"),
        ("table2/vatex/hgr", "hgr --data vatex --tower experts"),
        ("table2/msvd/xpool-b32", "xpool --data msvd --tower clip-b32 --protocol paper"),
        ("table1/eaglenet-b16", "eaglenet --data msrvtt --tower clip-b16 --protocol paper"),
        (
            "table4/didemo/mlp",
            "eaglenet --data didemo --tower clip-b16 --protocol paper --variant energy=mlp",
        ),
    ],
)
def test_rows_expand_to_commands(name: str, expected: str) -> None:
    assert paper_recipes()[name].command == f"eaglenet train {expected}"


def test_an_unknown_row_suggests_a_near_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'table1/xpool-b16'"):
        paper_recipes()["table1/xpol-b16"]
