"""`eaglenet recipes`: what can be trained by name, and what each name means."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.core import TyperGroup

from eaglenet.cli.options import AsJson, Settings, find_experiment
from eaglenet.core.errors import UsageError

OTHERS = "others"
PAPER_TABLE = "rows of a table of the paper, on MSR-VTT"
MEANINGS = {
    "folder": "your own videos and captions",
    "demo": "the small world that the package renders",
    "features": "heads on stored features",
    "frames": "folders of frames",
    "experts": "methods from before CLIP, on features of experts",
    "msrvtt": "MSR-VTT",
    "didemo": "DiDeMo",
    "msvd": "MSVD",
    "vatex": "VATEX",
    **dict.fromkeys(
        ("components", "energy", "pooling", "graph", "coefficient", "edges"), PAPER_TABLE
    ),
}
"""What a group is of, for those who read a list of groups."""


class WordsOrCommands(TyperGroup):
    """``eaglenet recipes WORD...``: what is no command is a word to look for."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Words become ``--containing`` options."""
        if args and not args[0].startswith("-") and args[0] not in self.commands:
            words = [part for word in args if not word.startswith("-") for part in ("-w", word)]
            args = [*words, *(word for word in args if word.startswith("-"))]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=WordsOrCommands,
    help="List the recipes (those with all the WORDs after `recipes`), or show one.",
    invoke_without_command=True,
)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="recipes")


@app.callback()
def list_recipes(
    context: typer.Context,
    containing: Annotated[
        list[str] | None,
        typer.Option("-w", "--containing", help="Only those with this in name or source."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them, with their sources.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the recipes with where they come from; without a word, their groups."""
    if context.invoked_subcommand is not None:
        return
    from eaglenet.research.recipes import RECIPES, describe_recipe

    wanted = [word.casefold() for word in containing or ()]
    texts = {name: f"{name} {describe_recipe(name)}".casefold() for name in RECIPES}
    names = [name for name, text in texts.items() if all(word in text for word in wanted)]
    if not names:
        raise UsageError(
            f"none of the {len(RECIPES)} recipes has {' and '.join(map(repr, wanted))} in its name "
            "or source; `eaglenet recipes` lists their groups"
        )
    if as_json:
        print(json.dumps({name: describe_recipe(name) for name in names}, indent=2))
        return
    if not wanted and not every:
        print("\n".join(overview(names)))
        return
    width = max(len(name) for name in names)
    for title, members in grouped(names).items():
        print(f"{title}:")
        for name in members:
            print(f"  {name:<{width}}  {describe_recipe(name)}")


def overview(names: Sequence[str]) -> list[str]:
    """A line for each group: hundreds of lines are no answer to somebody who wants to choose one.

    >>> overview(["msrvtt-b32", "demo", "msrvtt-b16/xpool"])[:2]
    ['msrvtt    2  MSR-VTT: msrvtt-b32, ...', 'others    1  demo']
    """
    groups = grouped(names)
    width = max(map(len, groups))
    lines = []
    for title, members in groups.items():
        meaning = f"{MEANINGS[title]}: " if title in MEANINGS else ""
        shown = ", ".join(members) if title == OTHERS else f"{min(members, key=len)}, ..."
        lines.append(f"{title:<{width}} {len(members):>4}  {meaning}{shown}")
    return [
        *lines,
        "",
        f"{len(names)} recipes. `eaglenet recipes WORD...` lists those with all the words (try",
        "`recipes folder`, `recipes msrvtt xpool`), `--all` all of them, `recipes show NAME` one.",
    ]


def grouped(names: Sequence[str]) -> dict[str, list[str]]:
    """Recipes by what their names begin with: the data; those that stand alone come last.

    >>> grouped(["msrvtt-b32", "demo", "msrvtt-b16/xpool"])
    {'msrvtt': ['msrvtt-b32', 'msrvtt-b16/xpool'], 'others': ['demo']}
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.split("[-/]", name)[0], []).append(name)
    alone = [name for members in groups.values() if len(members) == 1 for name in members]
    found = {title: members for title, members in groups.items() if len(members) > 1}
    return {**found, OTHERS: alone} if alone else found


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe.")],
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print a whole experiment as JSON, with its command and source."""
    from eaglenet.research.recipes import RECIPES

    experiment = find_experiment(name, settings)
    if not as_json and name in RECIPES:
        for line in (RECIPES[name].__doc__ or "").splitlines():
            print(f"# {line}".rstrip())
    print(json.dumps(experiment.to_plain(), indent=2))
