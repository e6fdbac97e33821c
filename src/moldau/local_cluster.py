"""Several brokers on one machine, each a process of its own."""
