"""DataFrames to topics: options, writers, the producer of a task, and the transactions that make it exactly once."""
