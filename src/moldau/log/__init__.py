"""The storage engine: one append-only log per partition, in Apache Kafka's own files. No network."""
