"""Commands around topics and the cluster: configurations, offsets, replicas, leaders, brokers."""
