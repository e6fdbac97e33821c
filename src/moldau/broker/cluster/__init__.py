"""This broker's place in its cluster: the controller, membership, metadata, other brokers."""
