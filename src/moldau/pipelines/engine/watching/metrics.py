"""Metrics of running pipelines for Prometheus: one table, from which scrapes and the page on monitoring are made.

A scrape reads the last snapshot, so it asks neither Spark nor a broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from moldau.errors import ConfigError
from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.engine.watching.observer import QuerySnapshot, Snapshot

HOST = "127.0.0.1"
LABELS = ("pipeline", "query")

Value = float | None  # None: not known, and not in the scrape


class Metric(NamedTuple):
    name: str
    help: str
    read: Callable[[QuerySnapshot], Value | Iterable[tuple[str, float]]]  # with a label of its own: pairs
    label: str | None = None

    @property
    def kind(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def labels(self) -> tuple[str, ...]:
        return (*LABELS, self.label) if self.label else LABELS


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


METRICS: tuple[Metric, ...] = (
    Metric(
        "moldau_pipeline_state",
        f"1 for the state of the query, 0 for the others: {', '.join(State)}.",
        lambda query: [(str(state), float(state is query.state)) for state in State],
        "state",
    ),
    Metric("moldau_pipeline_rows_read_total", "Rows read from the sources.", lambda query: query.progress.rows_in),
    Metric(
        "moldau_pipeline_rows_written_total",
        "Rows written to the sinks. Missing for a sink that does not count them.",
        lambda query: query.progress.rows_out,
    ),
    Metric(
        "moldau_pipeline_lag_records",
        "Records in the topics that the query has not read. Missing until the first batch has ended, and for sources "
        "that are not topics.",
        lambda query: query.progress.lag,
    ),
    Metric(
        "moldau_pipeline_lag_seconds",
        "Age of the oldest record that the query has not read; 0 if it has read all.",
        lambda query: 0.0 if query.progress.lag == 0 else query.progress.lag_seconds,
    ),
    Metric(
        "moldau_pipeline_batch_duration_seconds",
        "How long the last micro-batch took.",
        lambda query: query.progress.batch_ms / 1000 if query.progress.batch_id is not None else None,
    ),
    Metric("moldau_pipeline_state_rows", "Rows that stateful steps keep.", lambda query: query.progress.state_rows),
    Metric("moldau_pipeline_state_bytes", "Memory used by these rows.", lambda query: query.progress.state_bytes),
    Metric(
        "moldau_pipeline_late_rows_total",
        "Rows dropped by stateful steps because they came after the watermark. Spark counts them after it has combined"
        " those of a task with the same key and window, so there may be more.",
        lambda query: query.progress.late_rows,
    ),
    Metric(
        "moldau_pipeline_watermark_timestamp_seconds",
        "The watermark, as Unix time. Missing if there is none.",
        lambda query: _seconds(query.progress.watermark_ms),
    ),
    Metric(
        "moldau_pipeline_last_output_timestamp_seconds",
        "When a batch with output last ended, as Unix time. Missing until then.",
        lambda query: _seconds(query.progress.last_output_ms),
    ),
    Metric(
        "moldau_pipeline_failed_expectation_rows_total",
        "Rows that failed an expectation, whatever its action.",
        lambda query: [(name, float(rows)) for name, rows in query.progress.failed_expectations.items()],
        "expectation",
    ),
    Metric(
        "moldau_pipeline_dead_letters_total",
        "Dead letters: records that could not be read or processed, and rows that failed an expectation.",
        lambda query: query.progress.dead_letters,
    ),
    Metric("moldau_pipeline_restarts_total", "Restarts after a failure.", lambda query: query.restarts),
)


def serve_metrics(latest: Callable[[], Snapshot], port: int) -> Callable[[], None]:
    """Listen on this port of 127.0.0.1, until the function that it returns is called."""
    from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

    registry = CollectorRegistry()
    registry.register(_Collector(latest))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_http_server(port, HOST, registry)
    except OSError as error:
        raise ConfigError(f"cannot listen on {HOST}:{port} ({error.strerror}); choose another metrics port") from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop


class _Collector:
    def __init__(self, latest: Callable[[], Snapshot]) -> None:
        self._latest = latest

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        snapshot = self._latest()
        for metric in METRICS:
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name.removesuffix("_total"), metric.help, labels=metric.labels)
            for query in snapshot.queries:
                value = metric.read(query)
                pairs = [(None, value)] if value is None or isinstance(value, float | int) else value
                for label, number in pairs:
                    if number is not None:
                        own = [label] if label is not None else []
                        family.add_metric([query.pipeline, query.query, *own], float(number))
            yield family
