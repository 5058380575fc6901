"""The local store: SQLite for files, clips, transcripts; mapped segments for vectors; buckets."""
