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
        "This broker's number in the cluster. `broker.id` is the same key under its older name.",
        AtLeast(0),
        kafka_default="none (required)",
    )
    broker_id: int = key(
        "broker.id",
        Kind.INT,
        1,
        "The older name of `node.id`; where both are set they must agree.",
        AtLeast(-1),
        kafka_default="-1",
    )
    broker_rack: str | None = key(
        "broker.rack",
        Kind.STRING,
        None,
        "The rack this broker stands in, told to clients in Metadata.",
    )
    listeners: tuple[Listener, ...] = key(
        "listeners",
        Kind.LIST,
        (str(_DEFAULT_LISTENER),),
        "Where the broker listens, as NAME://host:port. An empty host or 0.0.0.0 means every interface; "
        "port 0 takes a free one.",
        ListOf(empty_ok=False),
        kafka_default="PLAINTEXT://:9092",
        value=(_DEFAULT_LISTENER,),
    )
    advertised_listeners: tuple[Listener, ...] = key(
        "advertised.listeners",
        Kind.LIST,
        None,
        "The addresses that clients are told to connect to, where they differ from `listeners`.",
        ListOf(empty_ok=False),
        value=(),
    )
    listener_security_protocol_map: str = key(
        "listener.security.protocol.map",
        Kind.STRING,
        _DEFAULT_PROTOCOLS,
        "The security protocol that each listener name stands for.",
    )
    inter_broker_listener_name: str | None = key(
        "inter.broker.listener.name",
        Kind.STRING,
        None,
        "The listener that brokers use among themselves. Unset: the first one.",
    )
    controller_listener_names: tuple[str, ...] = key(
        "controller.listener.names",
        Kind.LIST,
        (),
        "Listeners of a KRaft controller. There is none here: listeners with these names are not opened.",
        ListOf(),
    )
    zookeeper_connect: str | None = key(
        "zookeeper.connect",
        Kind.STRING,
        None,
        "The ZooKeeper ensemble of a cluster, as host:port,host:port/chroot. Unset: metadata is kept in local files.",
    )
    zookeeper_session_timeout_ms: int = key(
        "zookeeper.session.timeout.ms",
        Kind.INT,
        18_000,
        "How long ZooKeeper waits for a silent controller. Three or more brokers replace it sooner: after half of "
        "broker.session.timeout.ms, if most of them do not hear it.",
        AtLeast(1),
    )
    zookeeper_connection_timeout_ms: int | None = key(
        "zookeeper.connection.timeout.ms",
        Kind.INT,
        None,
        "How long a starting broker waits for the ensemble. Unset: zookeeper.session.timeout.ms.",
    )
    moldau_metadata_dir: str | None = key(
        "moldau.metadata.dir",
        Kind.STRING,
        None,
        "A folder that brokers of one machine share, to be a cluster without ZooKeeper; it keeps their metadata.",
    )
    moldau_cluster_brokers: int = key(
        "moldau.cluster.brokers",
        Kind.INT,
        0,
        "How many brokers the cluster has; with fewer, `moldau cluster status` says degraded. 0: not known.",
        AtLeast(0),
    )
    socket_send_buffer_bytes: int = key(
        "socket.send.buffer.bytes",
        Kind.INT,
        102_400,
        "SO_SNDBUF of client sockets; -1 leaves it to the operating system.",
        AtLeast(-1),
    )
    socket_receive_buffer_bytes: int = key(
        "socket.receive.buffer.bytes",
        Kind.INT,
        102_400,
        "SO_RCVBUF of client sockets; -1 leaves it to the operating system.",
        AtLeast(-1),
    )
    socket_request_max_bytes: int = key(
        "socket.request.max.bytes",
        Kind.INT,
        104_857_600,
        "The largest request; a longer one closes its connection.",
        AtLeast(1),
    )
    socket_listen_backlog_size: int = key(
        "socket.listen.backlog.size",
        Kind.INT,
        50,
        "How many connections may wait to be accepted.",
        AtLeast(1),
    )
    max_connections: int = key(
        "max.connections",
        Kind.INT,
        10_000,
        "Connections on this broker at one time; further ones are closed at once.",
        AtLeast(0),
        dynamic=True,
        kafka_default=str(INT_MAX),
    )
    max_connections_per_ip: int = key(
        "max.connections.per.ip",
        Kind.INT,
        5_000,
        "Connections from one address at one time; 0 is allowed only together with overrides.",
        AtLeast(0),
        dynamic=True,
        kafka_default=str(INT_MAX),
    )
    max_connections_per_ip_overrides: str = key(
        "max.connections.per.ip.overrides",
        Kind.STRING,
        "",
        "Limits of single addresses, as address:count,address:count.",
        dynamic=True,
    )
    connections_max_idle_ms: int = key(
        "connections.max.idle.ms",
        Kind.LONG,
        600_000,
        "A connection that is silent for this long is closed; negative means never.",
    )
    queued_max_request_bytes: int = key(
        "queued.max.request.bytes",
        Kind.LONG,
        536_870_912,
        "Bytes of requests that may be in memory at one time before the broker stops reading; -1 means no limit.",
        kafka_default="-1",
    )
    request_timeout_ms: int = key(
        "request.timeout.ms",
        Kind.INT,
        30_000,
        "How long a request between brokers may take.",
        AtLeast(1),
        later=True,
    )
    max_incremental_fetch_session_cache_slots: int = key(
        "max.incremental.fetch.session.cache.slots",
        Kind.INT,
        1_000,
        "Incremental fetch sessions kept at one time.",
        AtLeast(0),
    )
    fetch_max_bytes: int = key(
        "fetch.max.bytes",
        Kind.INT,
        57_671_680,
        "The most bytes that one fetch response carries, whatever the client asks for.",
        AtLeast(1024),
    )
    max_request_partition_size_limit: int = key(
        "max.request.partition.size.limit",
        Kind.INT,
        2_000,
        "Partitions in one DescribeTopicPartitions answer.",
        AtLeast(1),
    )
    moldau_metrics_port: int = key(
        "moldau.metrics.port",
        Kind.INT,
        0,
        "Port of `/metrics` (Prometheus), `/health` and `/ready`; 0 or -1 turns it off.",
        AtLeast(-1),
    )
    moldau_metrics_host: str = key(
        "moldau.metrics.host",
        Kind.STRING,
        "127.0.0.1",
        "Address that `moldau.metrics.port` listens on; 0.0.0.0 is every address of this machine, for everybody.",
    )
