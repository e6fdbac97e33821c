"""Broker keys of identity, listeners, connections and requests."""

from __future__ import annotations

from moldau.config.keys import INT_MAX, AtLeast, Configuration, Kind, ListOf, configuration_part, key
from moldau.config.listeners import Listener

_DEFAULT_PROTOCOLS = "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT"
_DEFAULT_LISTENER = Listener("PLAINTEXT", "127.0.0.1", 9092, "PLAINTEXT")


@configuration_part
class NetworkKeys(Configuration):
    __slots__ = ()

    node_id: int = key(
        "node.id",
        Kind.INT,
        1,
        "The id of this broker in the cluster. `broker.id` is the older name of this key.",
        AtLeast(0),
        kafka_default="none (required)",
    )
    broker_id: int = key(
        "broker.id",
        Kind.INT,
        1,
        "The older name of `node.id`. If both are set, they must be equal.",
        AtLeast(-1),
        kafka_default="-1",
    )
    broker_rack: str | None = key(
        "broker.rack",
        Kind.STRING,
        None,
        "The rack of this broker, reported to clients in Metadata responses.",
    )
    listeners: tuple[Listener, ...] = key(
        "listeners",
        Kind.LIST,
        (str(_DEFAULT_LISTENER),),
        "The addresses to listen on, as NAME://host:port. An empty host or 0.0.0.0 means all interfaces; port 0 "
        "means any free port.",
        ListOf(empty_ok=False),
        kafka_default="PLAINTEXT://:9092",
        value=(_DEFAULT_LISTENER,),
    )
    advertised_listeners: tuple[Listener, ...] = key(
        "advertised.listeners",
        Kind.LIST,
        None,
        "The addresses that clients connect to, if they differ from `listeners`.",
        ListOf(empty_ok=False),
        value=(),
    )
    listener_security_protocol_map: str = key(
        "listener.security.protocol.map",
        Kind.STRING,
        _DEFAULT_PROTOCOLS,
        "The security protocol of each listener name.",
    )
    inter_broker_listener_name: str | None = key(
        "inter.broker.listener.name",
        Kind.STRING,
        None,
        "The listener for connections between brokers. If unset, the first one.",
    )
    controller_listener_names: tuple[str, ...] = key(
        "controller.listener.names",
        Kind.LIST,
        (),
        "Listeners of a KRaft controller. Moldau has none, so listeners with these names are not opened.",
        ListOf(),
    )
    zookeeper_connect: str | None = key(
        "zookeeper.connect",
        Kind.STRING,
        None,
        "The ZooKeeper ensemble of a cluster, as host:port,host:port/chroot. If unset, metadata is stored in local "
        "files.",
    )
    zookeeper_session_timeout_ms: int = key(
        "zookeeper.session.timeout.ms",
        Kind.INT,
        18_000,
        "Time without contact after which ZooKeeper ends the session of the controller. A cluster of three or more "
        "brokers replaces it sooner: after half of `broker.session.timeout.ms`, if most brokers have lost contact "
        "with it.",
        AtLeast(1),
    )
    zookeeper_connection_timeout_ms: int | None = key(
        "zookeeper.connection.timeout.ms",
        Kind.INT,
        None,
        "How long a starting broker waits for the ensemble. If unset, `zookeeper.session.timeout.ms`.",
    )
    moldau_metadata_dir: str | None = key(
        "moldau.metadata.dir",
        Kind.STRING,
        None,
        "A directory for the metadata of a cluster whose brokers all run on one machine, without ZooKeeper. The "
        "brokers share it.",
    )
    moldau_cluster_brokers: int = key(
        "moldau.cluster.brokers",
        Kind.INT,
        0,
        "The expected number of brokers; with fewer, `moldau cluster status` reports the cluster as degraded. 0 "
        "means unknown.",
        AtLeast(0),
    )
    socket_send_buffer_bytes: int = key(
        "socket.send.buffer.bytes",
        Kind.INT,
        102_400,
        "SO_SNDBUF of client sockets; -1 uses the default of the operating system.",
        AtLeast(-1),
    )
    socket_receive_buffer_bytes: int = key(
        "socket.receive.buffer.bytes",
        Kind.INT,
        102_400,
        "SO_RCVBUF of client sockets; -1 uses the default of the operating system.",
        AtLeast(-1),
    )
    socket_request_max_bytes: int = key(
        "socket.request.max.bytes",
        Kind.INT,
        104_857_600,
        "The maximum size of a request; a longer one closes its connection.",
        AtLeast(1),
    )
    socket_listen_backlog_size: int = key(
        "socket.listen.backlog.size",
        Kind.INT,
        50,
        "The maximum number of connections that wait to be accepted.",
        AtLeast(1),
    )
    max_connections: int = key(
        "max.connections",
        Kind.INT,
        10_000,
        "The maximum number of connections; further ones are closed immediately.",
        AtLeast(0),
        dynamic=True,
        kafka_default=str(INT_MAX),
    )
    max_connections_per_ip: int = key(
        "max.connections.per.ip",
        Kind.INT,
        5_000,
        "The maximum number of connections from one address; 0 is allowed only together with overrides.",
        AtLeast(0),
        dynamic=True,
        kafka_default=str(INT_MAX),
    )
    max_connections_per_ip_overrides: str = key(
        "max.connections.per.ip.overrides",
        Kind.STRING,
        "",
        "Limits for single addresses, as address:count,address:count.",
        dynamic=True,
    )
    connections_max_idle_ms: int = key(
        "connections.max.idle.ms",
        Kind.LONG,
        600_000,
        "A connection that is idle for this long is closed; a negative value means never.",
    )
    queued_max_request_bytes: int = key(
        "queued.max.request.bytes",
        Kind.LONG,
        536_870_912,
        "The maximum number of bytes of requests in memory; beyond it the broker stops reading. -1 means no limit.",
        kafka_default="-1",
    )
    request_timeout_ms: int = key(
        "request.timeout.ms",
        Kind.INT,
        30_000,
        "The timeout of requests between brokers.",
        AtLeast(1),
        later=True,
    )
    max_incremental_fetch_session_cache_slots: int = key(
        "max.incremental.fetch.session.cache.slots",
        Kind.INT,
        1_000,
        "The maximum number of incremental fetch sessions.",
        AtLeast(0),
    )
    fetch_max_bytes: int = key(
        "fetch.max.bytes",
        Kind.INT,
        57_671_680,
        "The maximum number of bytes in a fetch response, whatever the client requests.",
        AtLeast(1024),
    )
    max_request_partition_size_limit: int = key(
        "max.request.partition.size.limit",
        Kind.INT,
        2_000,
        "The maximum number of partitions in a DescribeTopicPartitions response.",
        AtLeast(1),
    )
    moldau_metrics_port: int = key(
        "moldau.metrics.port",
        Kind.INT,
        0,
        "The HTTP port for `/metrics` (Prometheus), `/health` and `/ready`; 0 or -1 turns it off.",
        AtLeast(-1),
    )
    moldau_metrics_host: str = key(
        "moldau.metrics.host",
        Kind.STRING,
        "127.0.0.1",
        "The address for `moldau.metrics.port`. 0.0.0.0 opens the port on all interfaces, without authentication.",
    )
