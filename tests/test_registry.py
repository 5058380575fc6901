"""Name tables and their errors."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from eaglenet.core.errors import UnknownNameError
from eaglenet.core.registry import MAX_LISTED, Registry
from eaglenet.encoders import ENCODERS
from eaglenet.methods import METHODS
from eaglenet.research.recipes import paper_recipes
from eaglenet.scoring.scorer import FAST_FORMS

SOURCES = Path(__file__).parents[1] / "src" / "eaglenet"


def table(count: int) -> Registry[int]:
    entries: Registry[int] = Registry("shape")
    for index in range(count):
        entries.add(f"shape{index}", index)
    return entries


def test_unknown_name_lists_names_and_suggests_one() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown shape 'shap1'; did you mean 'shape1'"):
        table(3)["shap1"]


def test_lists_only_some_of_many_names() -> None:
    with pytest.raises(UnknownNameError, match="and 5 more") as caught:
        table(MAX_LISTED + 5)["circle"]
    assert f"shape{MAX_LISTED}" not in str(caught.value)


def test_names_the_command_that_lists_many_names() -> None:
    with pytest.raises(UnknownNameError, match=r"\(`eaglenet recipes table1` lists all \d+\)"):
        paper_recipes()["nothing like any"]


def test_duplicate_name_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        table(1).add("shape0", 7)


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[int]:
    """Return a registry with modules that are not imported yet; ``helpers`` adds no name."""
    package = types.ModuleType("shapes_of_a_test")
    monkeypatch.setattr(package, "__path__", [str(tmp_path)], raising=False)
    monkeypatch.setitem(sys.modules, package.__name__, package)
    names = ["circle", "helpers", "hexagon", "square"]
    modules = {name: f"{package.__name__}.{name}" for name in names}
    for name in names:
        add = f"from {package.__name__} import table; table.add({name!r}, {len(name)})"
        (tmp_path / f"{name}.py").write_text("" if name == "helpers" else add)
        monkeypatch.delitem(sys.modules, modules[name], raising=False)
    table: Registry[int] = Registry("shape", modules=modules)
    monkeypatch.setattr(package, "table", table, raising=False)
    return table


def imported(shapes: Registry[int]) -> list[str]:
    return [name for name, module in shapes.modules.items() if module in sys.modules]


def test_imports_a_module_when_its_name_is_looked_up(shapes: Registry[int]) -> None:
    assert imported(shapes) == []
    assert shapes["square"] == 6
    assert "triangle" not in shapes
    assert imported(shapes) == ["square"]
    assert "hexagon" in shapes
    assert imported(shapes) == ["hexagon", "square"]


def test_order_does_not_depend_on_lookups(shapes: Registry[int]) -> None:
    shapes.add("of a plug-in", 1)
    assert shapes["square"] == 6
    assert list(shapes) == ["circle", "hexagon", "square", "of a plug-in"]
    assert len(shapes) == 4


def test_unknown_name_lists_names_of_unloaded_modules(shapes: Registry[int]) -> None:
    with pytest.raises(UnknownNameError, match=r"mean 'circle'\? \(known: circle, hexagon, square"):
        shapes["cirle"]
    with pytest.raises(UnknownNameError, match="unknown shape 'helpers'"):
        shapes["helpers"]


def test_name_of_an_unloaded_module_is_a_duplicate(shapes: Registry[int]) -> None:
    with pytest.raises(ValueError, match="twice"):
        shapes.add("square", 7)
    assert shapes["square"] == 6


def test_failed_module_adds_nothing(shapes: Registry[int], tmp_path: Path) -> None:
    with (tmp_path / "square.py").open("a") as module:
        module.write("; import of_nobody")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="of_nobody"):
            shapes["square"]
    assert shapes["circle"] == 6


@pytest.mark.parametrize("table", [ENCODERS, FAST_FORMS], ids=["ENCODERS", "FAST_FORMS"])
def test_every_listed_module_adds_its_name(table: Registry[object]) -> None:
    assert list(table) == list(table.modules)


def test_every_method_has_the_name_of_its_file() -> None:
    files = [*(SOURCES / "methods").glob("*.py"), *(SOURCES / "methods" / "early").glob("*.py")]
    adding = {file.stem for file in files if re.search(r"^@register\(", file.read_text(), re.M)}
    assert len(adding) > 20
    assert list(METHODS) == sorted(adding)
