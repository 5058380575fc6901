"""The local store: SQLite for what is known, memory-mapped segments for vectors and features."""
