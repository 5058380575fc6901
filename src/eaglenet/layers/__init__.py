"""One idea a file; plain keyword arguments."""
