"""Store and engine: shortlist, re-rank, moments."""
