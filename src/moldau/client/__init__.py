"""The small blocking client the commands use: requests and answers, nothing in the background.

`config`      where to connect and how (`ClientConfig`, from Java-style properties)
`security`    TLS and SASL settings, for this client and for librdkafka
`tls`, `sasl`, `scram`  what they do: a socket wrapped, a broker spoken to, a password proven
`connection`  one socket to one broker: version negotiation, one request at a time
`cluster`     which broker to ask: bootstrap, controller, partition leaders, coordinators, retries
`admin`       what an administrator asks of topics, configurations and logs, answered in plain values
`cluster_admin`  the same of brokers, leaders and replicas that move
`groups`, `share_groups`, `transactions`  the same of what coordinators keep
`librdkafka`  the same Java-style properties for confluent-kafka, which moves the records

Producing and consuming are librdkafka's work (confluent-kafka), not this room's. Works against any Kafka.
"""
