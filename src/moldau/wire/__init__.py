"""Kafka's wire protocol as pure functions on bytes: no sockets, no clock, no files."""
