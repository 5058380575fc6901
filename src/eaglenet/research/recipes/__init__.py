"""Recipes: experiments composed of a method, data, a tower, a protocol and variants."""

from eaglenet.research.recipes.recipe import (
    DATA,
    PROTOCOLS,
    TABLES,
    VARIANTS,
    Recipe,
    paper_recipes,
)

__all__ = ["DATA", "PROTOCOLS", "TABLES", "VARIANTS", "Recipe", "paper_recipes"]
