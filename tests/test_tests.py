"""Tests are read like the source: every file and every fixture says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "eaglenet"
FILES = sorted(TESTS.rglob("*.py"))
ALONGSIDE = {"contract", "end_to_end", "hostile", "reference"}
"""Folders of tests that are about no one folder of the source."""


def is_fixture(node: ast.AST) -> bool:
    """A function that pytest calls to make something for tests."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
        "pytest.fixture" in ast.unparse(decorator) for decorator in node.decorator_list
    )


def test_every_file_and_fixture_has_a_docstring() -> None:
    missing = []
    for path in FILES:
        tree = ast.parse(path.read_text("utf-8"))
        if not ast.get_docstring(tree):
            missing.append(str(path.relative_to(TESTS)))
        for node in filter(is_fixture, tree.body):
            assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if not ast.get_docstring(node):
                missing.append(f"{path.relative_to(TESTS)}: {node.name}")
    assert missing == []


def test_folders_of_tests_are_those_of_the_source() -> None:
    """Tests of `search/store` are in `search/store`; a few folders are about the whole."""
    folders = {path.parent.relative_to(TESTS) for path in FILES} - {Path()}
    strange = [
        str(folder)
        for folder in sorted(folders)
        if folder.parts[0] not in ALONGSIDE and not (SOURCE / folder).is_dir()
    ]
    assert strange == []


def test_no_two_files_of_tests_have_one_name() -> None:
    """They are modules without packages: the second of a name stops the whole run."""
    names = [path.name for path in FILES if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
