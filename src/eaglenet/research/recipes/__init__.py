"""Recipes: experiments composed of a method, data, a tower, a protocol and variants."""

from eaglenet.research.names import PROTOCOLS
from eaglenet.research.recipes.recipe import DATA, TABLES, VARIANTS, Recipe, paper_recipes

__all__ = ["DATA", "PROTOCOLS", "TABLES", "VARIANTS", "Recipe", "paper_recipes"]
