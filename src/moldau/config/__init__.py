"""Typed configuration under Kafka's own key names; no I/O: callers read the files."""
