"""`eaglenet recipes`: what can be trained by name, and what each name means."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from eaglenet.cli.training_options import AsJson, Settings, find_experiment
from eaglenet.errors import UsageError

app = typer.Typer(help="List the recipes, or show one.", invoke_without_command=True)


def register(parent: typer.Typer) -> None:
    """Add the commands."""
    parent.add_typer(app, name="recipes")


@app.callback()
def list_recipes(
    context: typer.Context,
    containing: Annotated[
        str, typer.Option("--containing", help="Only names with this text in them.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """List the recipes with where they come from."""
    if context.invoked_subcommand is not None:
        return
    from eaglenet.recipes import RECIPES, describe_recipe

    names = [name for name in RECIPES if containing in name]
    if not names:
        raise UsageError(
            f"none of the {len(RECIPES)} recipes has {containing!r} in its name; "
            "`eaglenet recipes` lists them all"
        )
    if as_json:
        print(json.dumps({name: describe_recipe(name) for name in names}, indent=2))
        return
    width = max((len(name) for name in names), default=0)
    for name in names:
        print(f"{name:<{width}}  {describe_recipe(name)}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe.")],
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print a whole experiment as JSON, with its command and source."""
    from eaglenet.recipes import RECIPES

    experiment = find_experiment(name, settings)
    if not as_json and name in RECIPES:
        for line in (RECIPES[name].__doc__ or "").splitlines():
            print(f"# {line}".rstrip())
    print(json.dumps(experiment.to_plain(), indent=2))
