"""What makes brokers a cluster, as step machines: the controller, placement and elections, replicas. No I/O here."""
