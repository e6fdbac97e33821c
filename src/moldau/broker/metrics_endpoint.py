"""`/metrics` for Prometheus, `/health` and `/ready` for whoever runs the broker: HTTP on a port of its own.

Served from threads: a scrape never runs on the broker's loop. Health is asked on the loop, by one short call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector

from moldau.broker.group_lag import GroupLag
from moldau.broker.health import Health
from moldau.broker.metrics import SECONDS, Histogram
from moldau.broker.metrics_table import HISTOGRAMS, METRICS, Metric, Scrape
from moldau.broker.node import BrokerNode
from moldau.errors import ConfigError

LOOP_ANSWERS_S = 2.0
"""A loop that is busy for longer serves nobody."""
POLL_S = 0.05
"""How soon a stop is noticed."""
SOCKET_TIMEOUT_S = 10.0
"""Of one request: a client that says nothing must not keep a thread."""


class Monitor:
    """What the endpoint tells of one broker."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._health = Health(node)
        self._group_lag = GroupLag(node)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def start(self) -> None:
        """Begins to measure. On the loop."""
        self._node.spawn(self._health.probe_forever())
        self._node.spawn(self._group_lag.measure_forever())

    def collect(self) -> Iterator[Family]:
        scrape = Scrape(self._node, self._group_lag, is_ready=not self.why_not_ready())
        yield from (_histogram(metric, scrape) for metric in HISTOGRAMS)
        yield from (_family(metric, scrape) for metric in METRICS)

    def why_unhealthy(self) -> list[str]:
        return self._ask(self._health.why_unhealthy)

    def why_not_ready(self) -> list[str]:
        return self._ask(self._health.why_not_ready)

    def _ask(self, question: Callable[[], list[str]]) -> list[str]:
        """Asks on the loop, from another thread."""
        answer: Future[list[str]] = Future()

        def run() -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_result(question())

        try:
            self._node.loop.call_soon_threadsafe(run)
            return answer.result(LOOP_ANSWERS_S)
        except TimeoutError:
            return [f"the event loop has been busy for more than {LOOP_ANSWERS_S:.0f} s"]
        except RuntimeError:
            return ["the event loop is closed"]


def _family(metric: Metric, scrape: Scrape) -> Family:
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    name = metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name
    value: Any = metric.read(scrape)
    if not metric.labels:
        return make(name, metric.help, value=float(value))
    family = make(name, metric.help, labels=metric.labels)
    for labels, each in value:
        family.add_metric(labels, float(each))
    return family


def _histogram(metric: Metric, scrape: Scrape) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels or None)
    histograms: Any = metric.read(scrape)
    for label, histogram in histograms.items():
        family.add_metric([label] if metric.labels else [], _buckets(histogram), histogram.sum)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Prometheus wants them cumulative."""
    buckets, total = [], 0
    for bound, count in zip((*map(str, SECONDS), "+Inf"), list(histogram.counts), strict=True):
        total += count
        buckets.append((bound, float(total)))
    return buckets


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    monitor: Monitor


class _Handler(BaseHTTPRequestHandler):
    timeout = SOCKET_TIMEOUT_S
    server: _Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/") or "/"
        monitor = self.server.monitor
        if path == "/metrics":
            encoder, content_type = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, content_type, encoder(monitor.registry))
        elif path == "/health":
            self._tell("healthy", monitor.why_unhealthy())
        elif path == "/ready":
            self._tell("ready", monitor.why_not_ready())
        else:
            self._answer(404, "text/plain; charset=utf-8", b"Not found. There are /metrics, /health and /ready.\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _tell(self, what: str, reasons: list[str]) -> None:
        told = {"status": f"not {what}" if reasons else what, "reasons": reasons}
        self._answer(503 if reasons else 200, "application/json", json.dumps(told).encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """A scrape every few seconds is no news."""


def serve_metrics(node: BrokerNode, host: str, port: int) -> Callable[[], None]:
    """Listens until the function that it returns is called. From any thread."""
    try:
        server = _Server((host, port), _Handler)
    except OSError as error:
        raise ConfigError(
            f"moldau.metrics.port: cannot listen on {host}:{port} ({error.strerror}); choose another port"
        ) from error
    server.monitor = Monitor(node)
    node.loop.call_soon_threadsafe(server.monitor.start)
    thread = Thread(target=server.serve_forever, args=(POLL_S,), name="moldau-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
