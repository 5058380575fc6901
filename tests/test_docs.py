"""Commands, options and links of documents exist; numbers were measured; the diagram is true."""

from __future__ import annotations

import json
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import eaglenet.core.types
from eaglenet.cli.main import app
from eaglenet.cli.train import find_experiment
from eaglenet.methods import METHODS
from eaglenet.research.small.run import TOWER_RECIPES

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKING = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
RESULTS = ROOT / "benchmarks" / "results"
BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(eaglenet [a-z-].*)", re.DOTALL)


def commands(page: Path) -> Iterator[list[str]]:
    """Arguments of every ``eaglenet`` command, in code blocks and in the text."""
    text = page.read_text()
    lines = [
        line for block in BLOCK.findall(text) for line in block.replace("\\\n", "").split("\n")
    ]
    for code in (*lines, *re.findall(r"`([^`]+)`", BLOCK.sub("", text))):
        if found := COMMAND.fullmatch(code.strip()):
            line, *cut = re.split(r"\s#\s|\.\.\.|\|", found.group(1))
            words = shlex.split(line)[1:]
            if cut and words and words[-1].startswith("--"):
                words.pop()  # its value was cut off
            yield words


@cache
def all_commands() -> Any:
    """The command line, built once."""
    return get_command(app)


def check(words: list[str]) -> None:
    """Parse a command as the program does; run nothing."""
    command, rest = all_commands(), list(words)
    if "--import" in rest:  # main() removes it, wherever it stands
        at = rest.index("--import")
        del rest[at : at + 2]
    while True:
        context = command.context_class(command, info_name=command.name)
        values, rest, _ = command.make_parser(context).parse_args(rest)
        if not hasattr(command, "commands"):
            break
        if not rest or rest[0].isupper():
            return  # a group, or a placeholder
        assert rest[0] in command.commands, f"no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    assert rest == [], "too many arguments"
    for parameter in command.params:
        value = values.get(parameter.name)
        if isinstance(value, str) and not value.isupper() and parameter.callback is None:
            parameter.process_value(context, value)


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_commands_can_be_parsed(page: Path) -> None:
    """Commands, options, their values and the number of arguments are valid."""
    for words in commands(page):
        try:
            check(words)
        except Exception as error:  # typer raises errors of its own copy of click
            pytest.fail(f"{page.name}: eaglenet {' '.join(words)}: {error}")


def axis(words: list[str], option: str) -> str:
    return words[words.index(option) + 1] if option in words else ""


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_recipes_that_are_trained_can_be_composed(page: Path) -> None:
    for words in commands(page):
        if words[:1] != ["train"] or len(words) < 2 or "--import" in words:
            continue
        name = words[1]
        if not re.fullmatch(r"[a-z][\w/+-]*", name) or name in TOWER_RECIPES:
            continue
        if name not in METHODS and not name.startswith("table"):
            assert page.name == "extending.md", f"{page.name}: {' '.join(words)}"
            continue
        variants = [words[i + 1] for i, word in enumerate(words) if word == "--variant"]
        axes = [axis(words, option) for option in ("--data", "--tower", "--protocol")]
        find_experiment(name, *axes, variants)


def test_the_documents_name_commands_at_all() -> None:
    assert sum(len(list(commands(page))) for page in PAGES) > 50


def row(file: str, table: str, **fields: Any) -> dict[str, Any]:
    """The first row of a result's table with these fields."""
    rows = json.loads((RESULTS / file).read_text())[table]
    return next(row for row in rows if all(row[key] == value for key, value in fields.items()))


def measured() -> dict[str, str]:
    """What docs/reference/measurements.md has to say, by what it is about."""
    scoring, training = "scoring-stages-h200.json", "training-h200.json"
    found = {}
    for preset, precision in (("released", "bf16"), ("released", "fp32"), ("paper", "bf16"),
                              ("released didemo", "bf16")):  # fmt: skip
        seconds = row(scoring, "table", preset=preset, precision=precision, side="kernel")[
            "seconds"
        ]
        found[f"scores, {preset}, {precision}"] = f"{seconds:.3f} s"
    for file, tower, side, digits in (
        (training, "ViT-B/16", "ours compiled, 3 blocks recomputed", 0),
        ("training-b32-h200.json", "ViT-B/32", "ours compiled", 1),
    ):
        step = row(file, "steps", tower=tower, side=side)
        memory = f"{step['peak_bytes'] / 2**30:.{digits}f} GiB"
        found[tower] = f"{step['seconds']:.3f} s (best {step['best']:.3f}), {memory}"
    for side in ("ours", "ours compiled", "transformers compiled", "released loop"):
        rate = row("encoding-h200.json", "rows", tower="ViT-B/16", batch=768, side=side)
        found[f"frames, {side}"] = f"{rate['frames_per_second']:,.0f}"
    search = json.loads((RESULTS / "search-cpu.json").read_text())["search"]["query_ms"]
    found["query"] = f"p50 {search['p50']:.0f} ms, p99 {search['p99']:.0f} ms"
    rerank = row("scoring-cpu.json", "rerank", preset="released")["seconds"]
    found["re-rank"] = f"| {rerank * 1e3:.0f} ms (paper"
    return found


@pytest.mark.parametrize(("what", "number"), measured().items(), ids=measured().keys())
def test_the_measurements_page_says_what_was_measured(what: str, number: str) -> None:
    assert number in (ROOT / "docs" / "reference" / "measurements.md").read_text(), what


def test_a_time_in_the_readme_is_also_on_the_measurements_page() -> None:
    """The README repeats measurements; it makes none of its own."""
    page = (ROOT / "docs" / "reference" / "measurements.md").read_text()
    numbers = re.findall(r"\b\d[\d.,]* (?:s|ms|GiB)\b", (ROOT / "README.md").read_text())
    assert numbers
    assert [number for number in numbers if number not in page] == []


def without_code(text: str) -> str:
    """A page without its code blocks, in which brackets are no links."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=[str(page.relative_to(ROOT)) for page in LINKING])
def test_links_lead_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text())):
        if re.match(r"[a-z]+:", link):
            continue  # another site
        place, _, heading = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), f"{page.name}: {link}"
        assert ROOT in target.parents, f"{page.name}: {link} leaves the repository"
        if heading:
            assert heading in anchors(target), f"{page.name}: no heading for {link}"


@pytest.mark.parametrize("page", LINKING, ids=[str(page.relative_to(ROOT)) for page in LINKING])
def test_pages_named_in_words_exist(page: Path) -> None:
    for name in re.findall(r"`(docs/[\w/-]+\.md)`", page.read_text()):
        assert (ROOT / name).exists(), f"{page.name}: {name}"


def test_pages_that_the_source_names_exist() -> None:
    for folder in ("src", "benchmarks", "tests", "tools"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for name in re.findall(r"\bdocs/[\w/-]+\.md\b", file.read_text()):
                assert (ROOT / name).exists(), f"{file.relative_to(ROOT)}: {name}"


def test_the_index_of_the_documentation_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    missing = [page for page in pages if page != "README.md" and f"]({page})" not in index]
    assert missing == []


def test_every_method_is_in_the_readme_and_on_its_page() -> None:
    readme, page = (
        (ROOT / "README.md").read_text(),
        (ROOT / "docs" / "reference" / "methods.md").read_text(),
    )
    for name in METHODS:
        assert f"`{name}`" in readme, name
        assert f"| `{name}` |" in page, name
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |")]
        assert ("**approximate, from the abstract**" in row) == METHODS[name].is_approximate, name
    apart = readme.partition("so approximate:")[2].partition(";")[0]
    assert set(re.findall(r"`(\w+)`", apart)) == {n for n in METHODS if METHODS[n].is_approximate}


def test_the_diagram_of_the_architecture_shows_todays_imports() -> None:
    """Where it fails: python tools/draw_imports.py."""
    script = ROOT / "tools" / "draw_imports.py"
    done = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_site_shows_every_page() -> None:
    """Its menu (mkdocs.yml) has every page of docs/, and no other."""
    menu = re.findall(r"- ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(menu) == sorted(pages)


def test_the_python_reference_names_what_there_is() -> None:
    """Every public name is on the page, or in ``eaglenet.core.types``, which is."""
    named = re.findall(
        r"^::: ([\w.]+)$", (ROOT / "docs" / "reference" / "python.md").read_text(), re.MULTILINE
    )
    assert named
    for name in named:
        assert pkgutil.resolve_name(name) is not None
    shown = {name.rpartition(".")[2] for name in named} | set(vars(eaglenet.core.types))
    assert set(eaglenet.__all__) - shown == {"METHODS", "__version__"}
