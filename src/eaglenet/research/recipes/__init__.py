"""Recipes: whole experiments composed of a method, data, a tower, a protocol and variants."""

from eaglenet.research.recipes.recipe import DATA, PROTOCOLS, Recipe, paper_recipe, paper_recipes
from eaglenet.research.recipes.variants import TABLES, VARIANTS

__all__ = ["DATA", "PROTOCOLS", "TABLES", "VARIANTS", "Recipe", "paper_recipe", "paper_recipes"]
