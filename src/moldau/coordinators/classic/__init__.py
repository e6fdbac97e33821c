"""Classic consumer groups: the members agree on an assignment among themselves, the broker keeps the round together."""
