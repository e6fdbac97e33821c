"""Committed offsets: their records, the table they build, and the events that change it."""
