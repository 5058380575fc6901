"""Find moments: a store of clips, an indexer that fills it, an engine that searches it."""
