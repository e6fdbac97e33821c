"""The commands of Kafka Connect."""
