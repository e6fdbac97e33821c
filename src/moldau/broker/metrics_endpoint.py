"""Prometheus metrics on a port of their own, served from a thread: a scrape never runs on the broker's loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector

from moldau.broker.node import BrokerNode
from moldau.errors import ConfigError
from moldau.wire.apis import APIS

if TYPE_CHECKING:
    from threading import Thread
    from wsgiref.simple_server import WSGIServer


class NodeCollector:
    """Reads the node's plain integers; a torn read across two of them is fine for a metric."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node
        metrics = node.metrics
        requests = CounterMetricFamily("moldau_requests", "Requests by API.", labels=["api"])
        for key, count in list(metrics.requests.items()):
            requests.add_metric([APIS[key].name], count)
        yield requests
        errors = CounterMetricFamily(
            "moldau_produce_errors", "Refused record batches by Kafka error.", labels=["error"]
        )
        for code, count in list(metrics.produce_errors.items()):
            errors.add_metric([code.name], count)
        yield errors
        yield CounterMetricFamily("moldau_request_bytes", "Bytes of requests received.", value=metrics.bytes_in)
        yield CounterMetricFamily(
            "moldau_fetched_bytes", "Bytes of records sent to readers.", value=metrics.bytes_fetched
        )
        yield CounterMetricFamily("moldau_records", "Records appended by producers.", value=metrics.records_in)
        yield CounterMetricFamily(
            "moldau_unexpected_errors", "Requests that failed inside the broker.", value=metrics.unexpected_errors
        )
        yield CounterMetricFamily("moldau_cleanings", "Compacted logs that were cleaned.", value=metrics.cleanings)
        yield CounterMetricFamily(
            "moldau_cleaned_bytes", "Bytes that were read to be compacted.", value=metrics.bytes_cleaned
        )
        yield GaugeMetricFamily("moldau_connections", "Open client connections.", value=len(node.connections))
        yield CounterMetricFamily(
            "moldau_connections_refused", "Connections over the limits.", value=node.connections.refused
        )
        yield GaugeMetricFamily("moldau_fetch_sessions", "Open fetch sessions.", value=len(node.fetch_sessions))
        yield from self._logs()

    def _logs(self) -> Iterator[Metric]:
        size = GaugeMetricFamily("moldau_log_size_bytes", "Bytes in a partition's log.", labels=["topic", "partition"])
        end = GaugeMetricFamily("moldau_log_end_offset", "Next offset of a partition.", labels=["topic", "partition"])
        start = GaugeMetricFamily(
            "moldau_log_start_offset", "First offset of a partition.", labels=["topic", "partition"]
        )
        for (topic, partition), partition_log in list(self._node.logs.logs.items()):
            labels = [topic, str(partition)]
            size.add_metric(labels, partition_log.size_bytes)
            end.add_metric(labels, partition_log.log_end_offset)
            start.add_metric(labels, partition_log.log_start_offset)
        yield from (size, end, start)


def serve_metrics(node: BrokerNode, host: str, port: int) -> tuple[WSGIServer, Thread]:
    registry = CollectorRegistry()
    registry.register(NodeCollector(node))
    ProcessCollector(registry=registry)
    try:
        return start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(f"moldau.metrics.port: cannot listen on {host}:{port} ({error.strerror})") from error
