"""The local store: SQLite for files, clips and transcripts, mapped segments for vectors."""
