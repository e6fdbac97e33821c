"""Connectors with real Spark and their real counterparts."""
