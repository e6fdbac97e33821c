"""Transactions: the machine of one transactional id, the shard that holds many, and their records."""
