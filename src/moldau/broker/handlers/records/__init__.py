"""Produce, Fetch, ListOffsets."""
