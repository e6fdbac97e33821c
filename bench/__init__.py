"""Moldau and Apache Kafka, measured by the same clients in one run: `python -m bench`.

Contents: the two servers behind one interface (`servers`), the clients that drive them (each in a process of
its own), the scenarios with their goals, and the report. Nothing in `src/moldau` imports this package.
"""
