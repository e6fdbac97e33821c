"""The servers that are measured, behind one interface: Moldau and Apache Kafka, one broker or three."""
