"""The long-running process that keeps connectors and pipelines: Connect's REST, its state topics, a standby."""
