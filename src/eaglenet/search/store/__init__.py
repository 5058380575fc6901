"""What is kept of indexed videos: durable tables, and the snapshot that searching reads."""
