"""Search: queries, the engine, and its hits."""
