"""Several machines: Ray workers, stores on object storage, and shards. All need an extra."""
