"""What sinks of connectors write with, exactly once. Connectors import them when a query is built, not for lint."""
