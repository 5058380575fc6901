"""The table of recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from eaglenet.core.errors import quoted
from eaglenet.core.registry import Registry
from eaglenet.research.experiments.experiment import Experiment

Recipe = Callable[[], Experiment]

RECIPES: Registry[Recipe] = Registry("recipe", is_open=True, listed_by="eaglenet recipes")


def add_recipe(name: str, recipe: Recipe, doc: str) -> None:
    """Register ``recipe`` under ``name``; ``doc`` says the source, the command is put before it."""

    def named() -> Experiment:
        return dataclasses.replace(recipe(), name=name)

    named.__name__ = name
    named.__doc__ = f"eaglenet train {quoted(name)} --output DIR\n\n{doc}"
    RECIPES.add(name, named)


def build_recipe(name: str) -> Experiment:
    """The experiment of a recipe; an unknown name lists near ones."""
    return RECIPES[name]()


def describe_recipe(name: str) -> str:
    """The first sentence of a recipe's source, for lists."""
    lines = (RECIPES[name].__doc__ or "").splitlines()
    return lines[2] if len(lines) > 2 else ""
