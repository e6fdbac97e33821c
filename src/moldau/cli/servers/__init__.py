"""Commands that start and stop servers: brokers, alone or several at once, and ZooKeeper."""
