"""Model folders: loading, saving, heads, and the models that ship with the package."""
