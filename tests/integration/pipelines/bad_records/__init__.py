"""Records that cannot be processed, with real Spark and a real broker."""
