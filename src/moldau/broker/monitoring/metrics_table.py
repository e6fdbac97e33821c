"""Every metric of a broker: name, kind, labels, description, and how its value is read.

`docs/monitoring.md` is generated from this table. Values are read in the thread of a scrape without a lock: that two of
them may not belong together is fine for metrics. No value is read from a disk, so a disk that hangs hides none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

from moldau.broker import needs
from moldau.broker.monitoring.group_lag import INTERVAL_S, SERIES_MAX, GroupLag
from moldau.broker.monitoring.metrics import Histogram
from moldau.broker.replicas.partition import Partition
from moldau.log.manager import DirDescription
from moldau.version import __version__
from moldau.wire.apis import APIS
from moldau.wire.constants import NO_LEADER

Labelled = Iterable[tuple[tuple[str, ...], float]]


class Broker(
    needs.HasThreads,
    needs.HasMetrics,
    needs.HasConnections,
    needs.HasLocalBroker,
    needs.HasMetadata,
    needs.HasController,
    needs.HasHostedPartitions,
    needs.HasLogs,
    needs.HasFetchSessions,
    Protocol,
):
    """What the metrics are read from."""


class Scrape:
    """What one scrape looks at."""

    def __init__(self, broker: Broker, group_lag: GroupLag, *, is_ready: bool) -> None:
        self.broker = broker
        self.metrics = broker.metrics
        self.group_lag = group_lag
        self.is_ready = is_ready
        self.partitions: list[Partition] = broker.hosted.all()
        self.dirs: list[DirDescription] = broker.logs.describe_dirs()

    @property
    def led(self) -> Iterator[Partition]:
        return (partition for partition in self.partitions if partition.is_leader)


class Metric(NamedTuple):
    name: str
    help: str
    read: Callable[[Scrape], float | Labelled | Mapping[str, Histogram]]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        if self.name.endswith("_total"):
            return "counter"
        return "histogram" if self in HISTOGRAMS else "gauge"


def _count(partitions: Iterable[Partition], is_so: Callable[[Partition], bool]) -> int:
    return sum(1 for partition in partitions if is_so(partition))


def _offline_partitions(scrape: Scrape) -> int:
    """Only the controller reports them, so that the sum over all brokers is right."""
    broker = scrape.broker
    if not broker.controller.is_active:
        return 0
    return sum(each.leader == NO_LEADER for topic in broker.metadata.image.topics.values() for each in topic.partitions)


def _per_partition(read: Callable[[Partition], float]) -> Callable[[Scrape], Labelled]:
    return lambda scrape: [((each.topic, str(each.index)), read(each)) for each in scrape.partitions]


def _per_dir(read: Callable[[Scrape, DirDescription], float]) -> Callable[[Scrape], Labelled]:
    return lambda scrape: [((str(each.path),), read(scrape, each)) for each in scrape.dirs]


HISTOGRAMS: tuple[Metric, ...] = (
    Metric(
        "moldau_request_duration_seconds",
        "Time from the last byte of a request to its response, by API. For Fetch it includes the time it waits for "
        "records.",
        lambda scrape: {APIS[key].name: each for key, each in list(scrape.metrics.latencies.items())},
        ("api",),
    ),
    Metric(
        "moldau_event_loop_delay_seconds",
        "How late the event loop wakes up: the time that each request waits for others.",
        lambda scrape: {"": scrape.metrics.loop_delay},
    ),
)

METRICS: tuple[Metric, ...] = (
    Metric(
        "moldau_info",
        "Always 1; the labels have the version and the node id.",
        lambda scrape: [((__version__, str(scrape.broker.local.node_id)), 1)],
        ("version", "node_id"),
    ),
    Metric("moldau_ready", "1 if `/ready` returns 200.", lambda scrape: scrape.is_ready),
    # -- cluster
    Metric(
        "moldau_active_controller", "1 on the controller, 0 on other brokers.", lambda s: s.broker.controller.is_active
    ),
    Metric(
        "moldau_live_brokers",
        "Brokers that are registered and not fenced, as known to this broker.",
        lambda scrape: len(scrape.broker.metadata.live_brokers),
    ),
    Metric(
        "moldau_metadata_version",
        "Version of the metadata that this broker has applied.",
        lambda scrape: scrape.broker.metadata.image.version,
    ),
    Metric(
        "moldau_offline_partitions",
        "Partitions of the cluster without a leader; reported by the controller.",
        _offline_partitions,
    ),
    Metric("moldau_leader_partitions", "Partitions led by this broker.", lambda s: _count(s.led, lambda _: True)),
    Metric("moldau_hosted_partitions", "Partitions with a replica on this broker.", lambda s: len(s.partitions)),
    Metric(
        "moldau_under_replicated_partitions",
        "Partitions led by this broker with fewer in-sync replicas than replicas.",
        lambda scrape: _count(scrape.led, lambda each: len(each.isr) < len(each.replicas)),
    ),
    Metric(
        "moldau_under_min_isr_partitions",
        "Partitions led by this broker with fewer in-sync replicas than min.insync.replicas; acks=all fails.",
        lambda scrape: _count(scrape.led, lambda each: len(each.isr) < each.min_isr),
    ),
    Metric(
        "moldau_at_min_isr_partitions",
        "Partitions led by this broker that have several replicas, of which exactly min.insync.replicas are in sync.",
        lambda scrape: _count(scrape.led, lambda each: len(each.replicas) > 1 and len(each.isr) == each.min_isr),
    ),
    Metric(
        "moldau_offline_replicas",
        "Replicas on this broker whose log directory is offline.",
        lambda scrape: _count(scrape.partitions, lambda each: each.log.log_dir.offline),
    ),
    Metric(
        "moldau_leader_elections_total",
        "Changes of partition leaders, including partitions that lost their leader; counted by the controller.",
        lambda scrape: scrape.metrics.leader_elections,
    ),
    Metric(
        "moldau_unclean_leader_elections_total",
        "Elections of a leader that may lack committed records; counted by the controller.",
        lambda scrape: scrape.metrics.unclean_leader_elections,
    ),
    Metric(
        "moldau_isr_shrinks_total",
        "Changes that removed replicas from an in-sync set; counted by the controller.",
        lambda scrape: scrape.metrics.isr_shrinks,
    ),
    Metric(
        "moldau_isr_expands_total",
        "Changes that added replicas to an in-sync set; counted by the controller.",
        lambda scrape: scrape.metrics.isr_expands,
    ),
    # -- groups
    Metric(
        "moldau_group_lag",
        "Records between a group's committed offsets and the end of a topic. Reported by the group's coordinator, "
        f"measured every {INTERVAL_S:.0f} s. Only the {SERIES_MAX:,} largest are reported.",
        lambda scrape: [((each.group, each.topic), each.lag) for each in scrape.group_lag.series],
        ("group", "topic"),
    ),
    Metric(
        "moldau_group_lag_left_off",
        f"Lags that are not reported because there are more than {SERIES_MAX:,}.",
        lambda scrape: scrape.group_lag.left_off,
    ),
    # -- requests
    Metric(
        "moldau_requests_total",
        "Requests by API.",
        lambda scrape: [((APIS[key].name,), count) for key, count in list(scrape.metrics.requests.items())],
        ("api",),
    ),
    Metric(
        "moldau_produce_errors_total",
        "Rejected record batches by Kafka error.",
        lambda scrape: [((code.name,), count) for code, count in list(scrape.metrics.produce_errors.items())],
        ("error",),
    ),
    Metric(
        "moldau_unexpected_errors_total",
        "Internal errors of the broker. Each is a bug and has a traceback in the log.",
        lambda scrape: scrape.metrics.unexpected_errors,
    ),
    Metric("moldau_request_bytes_total", "Bytes of requests received.", lambda scrape: scrape.metrics.bytes_in),
    Metric(
        "moldau_fetched_bytes_total",
        "Bytes of records sent to consumers.",
        lambda s: s.metrics.bytes_fetched,
    ),
    Metric("moldau_records_total", "Records appended by producers.", lambda scrape: scrape.metrics.records_in),
    Metric("moldau_connections", "Open client connections.", lambda scrape: len(scrape.broker.connections)),
    Metric(
        "moldau_connections_refused_total",
        "Connections closed because of a connection limit.",
        lambda s: s.broker.connections.refused,
    ),
    Metric("moldau_fetch_sessions", "Open fetch sessions.", lambda scrape: len(scrape.broker.fetch_sessions)),
    # -- disks and logs
    Metric(
        "moldau_log_dir_free_bytes",
        "Free bytes on the disk of a log directory; -1 if unknown.",
        _per_dir(lambda _, each: each.usable_bytes),
        ("directory",),
    ),
    Metric(
        "moldau_log_dir_total_bytes",
        "Size of the disk of a log directory.",
        _per_dir(lambda _, each: each.total_bytes),
        ("directory",),
    ),
    Metric(
        "moldau_log_dir_size_bytes",
        "Bytes of all logs in a log directory.",
        _per_dir(lambda _, each: sum(each.sizes.values())),
        ("directory",),
    ),
    Metric(
        "moldau_log_dir_offline",
        "1 if the disk of a log directory failed; it stays 1 until the broker restarts.",
        _per_dir(lambda scrape, each: each.path in scrape.broker.logs.offline_dirs),
        ("directory",),
    ),
    Metric(
        "moldau_log_dir_waiting_seconds",
        "How long the oldest running disk operation (fsync, checkpoint, deletion, …) has been waiting.",
        _per_dir(lambda scrape, each: scrape.broker.threads.disk(each.path).busy_s),
        ("directory",),
    ),
    Metric(
        "moldau_log_size_bytes",
        "Bytes in a partition's log.",
        _per_partition(lambda each: each.log.size_bytes),
        ("topic", "partition"),
    ),
    Metric(
        "moldau_log_end_offset",
        "Next offset of a partition.",
        _per_partition(lambda each: each.log.log_end_offset),
        ("topic", "partition"),
    ),
    Metric(
        "moldau_log_start_offset",
        "First offset of a partition.",
        _per_partition(lambda each: each.log.log_start_offset),
        ("topic", "partition"),
    ),
    Metric("moldau_cleanings_total", "Completed cleanings of compacted logs.", lambda scrape: scrape.metrics.cleanings),
    Metric("moldau_cleaned_bytes_total", "Bytes read by the log cleaner.", lambda s: s.metrics.bytes_cleaned),
)
