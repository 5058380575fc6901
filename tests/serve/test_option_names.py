"""The table of option names in the query reference agrees with all interfaces."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import typer.main

from eaglenet.cli.main import app
from eaglenet.search.engine import Engine
from eaglenet.search.options import Filters, SearchOptions
from eaglenet.search.query import Query
from eaglenet.serve.schemas import QueryParameters, SeveralQueries

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "queries.md"


@pytest.fixture(scope="module")
def names() -> list[set[str]]:
    """Names in the columns of the table."""
    section = PAGE.read_text().partition("## Names of options")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in re.findall(r"^\|.*\|$", section, re.M)[2:]]
    return [
        {name for cell in column for name in re.findall(r"`([^`]+)`", cell)}
        for column in zip(*rows, strict=True)
    ]


def test_the_table_has_the_options_of_the_command_line(names: list[set[str]]) -> None:
    (search,) = (typer.main.get_group(app).commands[name] for name in ("search",))
    other_groups = {"Output", "Model"}
    options = {
        name
        for parameter in search.params
        if getattr(parameter, "rich_help_panel", None) not in other_groups
        for name in parameter.opts
    }
    # Where and how to search and print, and files of many queries.
    others = {"words", "--store", "--json", "--open", "--queries", "--captions", "--help-all"}
    assert names[1] == options - others | {"TEXT"}


def test_the_table_has_the_options_of_python(names: list[set[str]]) -> None:
    fields = {spec.name for cls in (SearchOptions, Filters) for spec in dataclasses.fields(cls)}
    arguments = set(inspect.signature(Engine.search).parameters) - {"self", "options", "changes"}
    sources = {
        f"Query({spec.name}=)"
        for spec in dataclasses.fields(Query)
        if spec.name not in ("text", "window", "clips", "dates")
    }
    assert names[2] == (fields - {"filters"}) | arguments | sources


def test_the_table_has_the_parameters_of_the_service(names: list[set[str]]) -> None:
    parameters = {
        spec.alias or name
        for cls in (QueryParameters, SeveralQueries)
        for name, spec in cls.model_fields.items()
    }
    assert {name for name in names[3] if re.fullmatch(r"\w+", name)} == parameters


def test_the_table_has_the_arguments_for_assistants(names: list[set[str]]) -> None:
    pytest.importorskip("mcp")
    from eaglenet.serve.mcp import Agents

    arguments = set(inspect.signature(Agents.search_moments).parameters) - {"self"}
    assert names[4] - {"similar", '- "text"'} == arguments
