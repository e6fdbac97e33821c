"""Each door reads one format and returns a `Pipeline`."""
