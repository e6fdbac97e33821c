"""Share groups (KIP-932): queues on topics, where each record is acknowledged by itself."""
