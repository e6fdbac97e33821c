"""Change capture from PostgreSQL, over ordinary connections: a logical replication slot is read by SQL functions."""
