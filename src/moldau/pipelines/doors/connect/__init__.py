"""Kafka Connect's configurations as pipelines: connectors, converters, transforms, predicates by their class names."""
