"""Several machines: Ray workers and shards of a store. Everything here needs an extra."""
