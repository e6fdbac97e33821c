"""`/metrics` for Prometheus, `/health` and `/ready` for operators: HTTP on a port of its own.

Requests are served by threads, so a scrape does not run on the event loop. Health is checked on it, in one short call.

Clients of this port share file descriptors, threads and the interpreter's lock with the broker's clients. So
connections and the duration of a request are limited, and there is one scrape at a time, whose page all waiting clients
get.
"""

from __future__ import annotations

import json
import logging
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Any, NamedTuple, Protocol

from prometheus_client import CollectorRegistry
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.process_collector import ProcessCollector

from moldau.broker import needs
from moldau.broker.monitoring import group_lag, health, metrics_table
from moldau.broker.monitoring.group_lag import GroupLag
from moldau.broker.monitoring.health import Health
from moldau.broker.monitoring.metrics import SECONDS, Histogram
from moldau.broker.monitoring.metrics_table import HISTOGRAMS, METRICS, Metric, Scrape
from moldau.errors import ConfigError

logger = logging.getLogger(__name__)

LOOP_ANSWERS_S = 2.0
"""An event loop that is busy for longer counts as unhealthy."""
POLL_S = 0.05
"""How soon a stop is noticed."""
CONNECTIONS_MAX = 20
"""Each takes a thread and a descriptor; a few scrapers and probes need two or three. More are closed at once."""
REQUEST_S = 10.0
"""For a request to be complete, byte by byte perhaps, and again for its answer to be taken: as long as Prometheus waits
for a scrape by default."""
SHARED_S = 1.0
"""A page is given out again for this long: a scrape of thousands of partitions needs the interpreter's lock for a tenth
of a second, and one client in a loop would slow down all others."""
PLAIN_TEXT, OPENMETRICS = CONTENT_TYPE_PLAIN_0_0_4, openmetrics.CONTENT_TYPE_LATEST
ENCODERS: dict[str, Callable[[CollectorRegistry], bytes]] = {
    PLAIN_TEXT: generate_latest,
    OPENMETRICS: openmetrics.generate_latest,
}


def content_type(accept: str) -> str:
    """What to answer to an `Accept` header: OpenMetrics if it is asked for, else plain text."""
    wanted = {each.partition(";")[0].strip() for each in accept.split(",")}
    return OPENMETRICS if "application/openmetrics-text" in wanted else PLAIN_TEXT


class Page(NamedTuple):
    body: bytes
    made_s: float


class Broker(metrics_table.Broker, health.Broker, group_lag.Broker, needs.HasTasks, Protocol):
    """What all pages are made from."""


class Monitor:
    """The metrics and health of one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._health = Health(broker)
        self._group_lag = GroupLag(broker)
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        self._pages: dict[str, Page] = {}
        self._scraping = Lock()

    def start(self) -> None:
        """Begins to measure. On the loop."""
        self._broker.spawn(self._health.probe_forever())
        self._broker.spawn(self._group_lag.measure_forever())

    def page(self, content_type: str) -> bytes:
        """All metrics; who asks while they are read, or shortly after, gets the same page."""
        with self._scraping:
            page = self._pages.get(content_type)
            if page is None or time.monotonic() - page.made_s >= SHARED_S:
                page = Page(ENCODERS[content_type](self.registry), time.monotonic())
                self._pages[content_type] = page
            return page.body

    def collect(self) -> Iterator[Family]:
        scrape = Scrape(self._broker, self._group_lag, is_ready=not self.why_not_ready())
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
            self._broker.loop.call_soon_threadsafe(run)
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

    def __init__(self, address: tuple[str, int]) -> None:
        self._deadlines_s: dict[Any, float] = {}
        """By open connection: when its request has to be complete."""
        self._lock = Lock()
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """False: the connection is closed."""
        with self._lock:
            if len(self._deadlines_s) >= CONNECTIONS_MAX:
                return False
            self._deadlines_s[request] = time.monotonic() + REQUEST_S
            return True

    def completed(self, request: Any) -> None:
        """The rest is up to us; a client that takes no answer ends by the time-out of its socket."""
        with self._lock:
            self._deadlines_s[request] = math.inf

    def service_actions(self) -> None:
        self._end_connections(time.monotonic())

    def server_close(self) -> None:
        super().server_close()
        self._end_connections(math.inf)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._deadlines_s.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if isinstance(sys.exception(), OSError):
            logger.debug("a client of the metrics port went away", extra={"client": client_address[0]})
        else:
            logger.exception("internal error while serving the metrics port (please report it)")

    def _end_connections(self, now_s: float) -> None:
        """Shuts down the connections whose deadline has passed, which wakes their threads."""
        with self._lock:  # none of them is closed meanwhile, and its descriptor another's
            for request, deadline_s in self._deadlines_s.items():
                if deadline_s <= now_s:
                    with suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_S
    server: _Server

    def do_GET(self) -> None:
        self.server.completed(self.request)
        path = self.path.partition("?")[0].rstrip("/") or "/"
        monitor = self.server.monitor
        if path == "/metrics":
            wanted = content_type(self.headers.get("Accept", ""))
            self._answer(200, wanted, monitor.page(wanted))
        elif path == "/health":
            self._answer_status("healthy", monitor.why_unhealthy())
        elif path == "/ready":
            self._answer_status("ready", monitor.why_not_ready())
        else:
            self._answer(404, "text/plain; charset=utf-8", b"Not found. There are /metrics, /health and /ready.\n")

    def do_HEAD(self) -> None:
        self.do_GET()

    def _answer_status(self, what: str, reasons: list[str]) -> None:
        status = {"status": f"not {what}" if reasons else what, "reasons": reasons}
        self._answer(503 if reasons else 200, "application/json", json.dumps(status).encode() + b"\n")

    def _answer(self, status: int, content_type: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not logged: there is a scrape every few seconds."""


def serve_metrics(broker: Broker, host: str, port: int) -> Callable[[], None]:
    """Listens until the function that it returns is called. From any thread."""
    try:
        server = _Server((host, port))
    except OSError as error:
        raise ConfigError(
            f"moldau.metrics.port: cannot listen on {host}:{port} ({error.strerror}); choose another port"
        ) from error
    server.monitor = Monitor(broker)
    broker.loop.call_soon_threadsafe(server.monitor.start)
    thread = Thread(target=server.serve_forever, args=(POLL_S,), name="moldau-metrics", daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
