"""Spark data sources in Python, behind connectors. Connectors import them when a query is built, not for lint."""
