"""Moldau: Apache Kafka's commit log in Python, over Kafka's wire protocol, in Kafka's files."""

__version__ = "0.1.0"
