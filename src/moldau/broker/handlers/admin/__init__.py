"""Topics, configurations, metadata, and what brokers ask the controller."""
