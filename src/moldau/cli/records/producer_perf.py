"""`kafka-producer-perf-test`: how fast records are produced, and how long each takes to be acknowledged."""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from moldau.cli.common import CommandParser, load_properties, parse_key_values, print_json, run_client, warn
from moldau.errors import ConfigError

if TYPE_CHECKING:
    from moldau.cli.records.confluent import Interruption

_EXAMPLE = """\
{prog} --bootstrap-server localhost:9092 --topic load \\
    --num-records 1000000 --record-size 100 --throughput -1"""
_LETTERS = bytes(65 + i % 26 for i in range(256))  # any byte to one of A to Z
_SAMPLES_MAX = 500_000  # latencies kept for the percentiles
_TRANSACTION_MS = 3_000
_METADATA_TIMEOUT_MS = 60_000
_PRODUCER_ID_TIMEOUT_S = 5.0
_THROTTLE_SLEEP_S = 0.002  # shorter sleeps are inexact, and the target is approximate anyway


def main(argv: Sequence[str] | None = None, prog: str = "kafka-producer-perf-test") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    _check(parser, args)
    return run_client(prog, lambda: _measure(args))


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Measure producing.", _EXAMPLE)
    parser.add_connection(old_name="--broker-list")
    parser.add_argument("--topic", metavar="NAME", help="the topic to write to")
    parser.add_argument("--num-records", metavar="N", type=int, help="number of records")
    payload = parser.add_mutually_exclusive_group()
    payload.add_argument(
        "--record-size", metavar="BYTES", type=int, help="size of the records in bytes; the content is random"
    )
    payload.add_argument("--payload-file", metavar="FILE", help="file with payloads, which are chosen at random")
    payload.add_argument("--payload-monotonic", action="store_true", help="use the numbers 0, 1, 2, … as payloads")
    parser.add_argument(
        "--payload-delimiter",
        metavar="TEXT",
        default="\\n",
        help="the delimiter between the payloads of --payload-file",
    )
    parser.add_argument(
        "--throughput", metavar="N", type=float, help="target number of records per second; -1 means no limit"
    )
    parser.add_argument(
        "--command-property",
        "--producer-props",
        metavar="KEY=VALUE",
        nargs="+",
        action="extend",
        default=[],
        help="producer properties; take precedence over --command-config",
    )
    parser.add_argument(
        "--command-config", "--producer.config", metavar="FILE", help="properties file for the producer"
    )
    parser.add_argument("--transactional-id", metavar="ID", help="produce in transactions under this id")
    parser.add_argument("--transaction-duration-ms", metavar="MS", type=int, help="maximum duration of a transaction")
    parser.add_argument(
        "--warmup-records",
        metavar="N",
        type=int,
        default=0,
        help="number of first records to exclude from a second summary",
    )
    parser.add_argument(
        "--reporting-interval", metavar="MS", type=int, default=5000, help="time between two lines of output"
    )
    parser.add_argument("--print-metrics", action="store_true", help=argparse.SUPPRESS)
    parser.add_flag("--json", "print only the summary, as JSON")
    return parser


def _check(parser: CommandParser, args: argparse.Namespace) -> None:
    parser.require(args, "--topic", "--num-records", "--throughput")
    if args.record_size is None and args.payload_file is None and not args.payload_monotonic:
        parser.error("One of --record-size, --payload-file and --payload-monotonic is required")
    for name in ("num_records", "record_size", "transaction_duration_ms", "reporting_interval"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} should be greater than zero")
    if args.warmup_records >= args.num_records:
        parser.error("--warmup-records must be fewer than --num-records")


class Stats:
    """Counts and latencies, with a line for every window; `clock` gives seconds and is passed in by tests."""

    def __init__(
        self,
        expected: int,
        report_every_ms: int,
        *,
        label: str = "",
        report: Callable[[str], None] | None = print,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._report = report
        self._report_every_s = report_every_ms / 1000
        self._label = label
        self._sampling = max(1, expected // _SAMPLES_MAX)
        self._latencies: list[int] = []
        self.count = 0
        self._bytes = 0
        self._latency_total = 0
        self._latency_max = 0
        self._start = clock()
        self._new_window(self._start)

    def _new_window(self, now: float) -> None:
        self._window_start = now
        self._window_count = self._window_bytes = self._window_latency = self._window_latency_max = 0

    def mute(self) -> None:
        self._report = None

    def record(self, latency_ms: int, size: int) -> None:
        if self.count % self._sampling == 0:
            self._latencies.append(latency_ms)
        self.count += 1
        self._bytes += size
        self._latency_total += latency_ms
        self._latency_max = max(self._latency_max, latency_ms)
        self._window_count += 1
        self._window_bytes += size
        self._window_latency += latency_ms
        self._window_latency_max = max(self._window_latency_max, latency_ms)
        now = self._clock()
        if now - self._window_start >= self._report_every_s:
            self._print_window(now - self._window_start)
            self._new_window(now)

    def _print_window(self, elapsed: float) -> None:
        if self._report is not None:
            self._report(
                f"{self._window_count} records sent, {self._window_count / elapsed:.1f} records/sec "
                f"({self._window_bytes / elapsed / 1048576:.2f} MB/sec), "
                f"{self._window_latency / self._window_count:.1f} ms avg latency, "
                f"{self._window_latency_max:.1f} ms max latency."
            )

    def summary(self) -> dict[str, float]:
        elapsed = max(self._clock() - self._start, 1e-9)
        ordered = sorted(self._latencies) or [0]
        percentiles = {
            f"latencyMs{name}": ordered[min(int(part * len(ordered)), len(ordered) - 1)]
            for name, part in (("50", 0.5), ("95", 0.95), ("99", 0.99), ("99.9", 0.999))
        }
        return {
            "recordsSent": self.count,
            "recordsPerSec": self.count / elapsed,
            "mbPerSec": self._bytes / elapsed / 1048576,
            "latencyMsAvg": self._latency_total / max(self.count, 1),
            "latencyMsMax": self._latency_max,
            **percentiles,
        }

    def total_line(self) -> str:
        s = self.summary()
        return (
            f"{s['recordsSent']}{self._label} records sent, {s['recordsPerSec']:f} records/sec "
            f"({s['mbPerSec']:.2f} MB/sec), {s['latencyMsAvg']:.2f} ms avg latency, "
            f"{s['latencyMsMax']:.2f} ms max latency, {s['latencyMs50']} ms 50th, "
            f"{s['latencyMs95']} ms 95th, {s['latencyMs99']} ms 99th, {s['latencyMs99.9']} ms 99.9th."
        )


def payloads(args: argparse.Namespace) -> Iterator[bytes]:
    """The values to send; random, but the same in every run so that runs compare."""
    generator = random.Random(0)
    if args.payload_file is not None:
        parts = _read_payloads(args.payload_file, args.payload_delimiter.replace("\\n", "\n"))
        for _ in range(args.num_records):
            yield generator.choice(parts)
    elif args.record_size is not None:
        for _ in range(args.num_records):
            yield generator.randbytes(args.record_size).translate(_LETTERS)
    else:
        for number in range(args.num_records):
            yield b"%d" % number


def _read_payloads(path: str, delimiter: str) -> list[bytes]:
    try:
        with open(path, encoding="utf-8") as file:
            parts = [part.encode() for part in file.read().split(delimiter) if part]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if not parts:
        raise ConfigError(f"{path} contains no payloads")
    return parts


def _measure(args: argparse.Namespace) -> int:
    from moldau.cli.records import confluent

    props = load_properties(args.command_config) | parse_key_values(args.command_property)
    if args.transactional_id or args.transaction_duration_ms:
        props["transactional.id"] = args.transactional_id or f"performance-producer-{random.getrandbits(64):x}"
    if args.print_metrics:
        warn("WARN --print-metrics is not supported and has no effect")
    config = confluent.client_config(props, args.bootstrap_server, "perf-producer-client")
    producer_id = ProducerIdWait()
    producer = confluent.producer(config | producer_id.config())
    with confluent.Interruption() as interruption:
        confluent.cluster_metadata(producer, args.topic, _METADATA_TIMEOUT_MS, interruption)
        producer_id.wait(producer, interruption)
        load = Load(args, producer, in_transactions="transactional.id" in props)
        load.run(interruption)
        producer.flush()
    load.print_summary()
    return 1 if load.failed else 0


class ProducerIdWait:
    """librdkafka asks for an idempotent producer's id every half second only: the clock starts once it has one."""

    def __init__(self) -> None:
        self._is_ready = False

    def config(self) -> dict[str, Any]:
        return {"statistics.interval.ms": 50, "stats_cb": self._on_statistics}

    def _on_statistics(self, text: str) -> None:
        # Called again and again during the measurement: then it must cost nothing.
        if not self._is_ready:
            state = json.loads(text).get("eos", {}).get("idemp_state")
            # None: not idempotent. Init: transactional, where init_transactions does the waiting.
            self._is_ready = state in (None, "Init", "Assigned")

    def wait(self, producer: Any, interruption: Interruption) -> None:
        deadline = time.perf_counter() + _PRODUCER_ID_TIMEOUT_S
        while not self._is_ready and not interruption.requested and time.perf_counter() < deadline:
            producer.poll(0.05)


class Load:
    def __init__(self, args: argparse.Namespace, producer: Any, *, in_transactions: bool) -> None:
        self._args = args
        self._producer = producer
        self._in_transactions = in_transactions
        self._transaction_s = (args.transaction_duration_ms or _TRANSACTION_MS) / 1000
        self._stats = self._new_stats(args.num_records)
        self._steady: Stats | None = None
        self.failed = 0

    def _new_stats(self, expected: int, label: str = "") -> Stats:
        report = None if self._args.json else partial(print, flush=True)
        return Stats(expected, self._args.reporting_interval, label=label, report=report)

    def run(self, interruption: Interruption) -> None:
        producer, topic = self._producer, self._args.topic
        produce, poll, on_delivery = producer.produce, producer.poll, self._on_delivery
        limit = self._args.throughput if self._args.throughput > 0 else None
        started = transaction_started = time.perf_counter()
        if self._in_transactions:
            producer.init_transactions()
            producer.begin_transaction()
        for number, payload in enumerate(payloads(self._args)):
            if number == self._args.warmup_records and number:
                self._steady = self._new_stats(self._args.num_records - number, " steady state")
                self._stats.mute()
            while True:
                try:
                    produce(topic, payload, on_delivery=on_delivery)
                    break
                except BufferError:
                    poll(0.1)
            poll(0)
            if self._in_transactions and time.perf_counter() - transaction_started >= self._transaction_s:
                producer.commit_transaction()
                producer.begin_transaction()
                transaction_started = time.perf_counter()
            if interruption.requested:
                break
            if limit is not None:
                while (number + 1) / limit > time.perf_counter() - started:
                    poll(_THROTTLE_SLEEP_S)
        if self._in_transactions:
            producer.commit_transaction()

    def _on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed += 1
            if self.failed == 1:
                warn(f"Error when sending: {error.str()}")
            return
        latency_ms, size = int(message.latency() * 1000), len(message)
        self._stats.record(latency_ms, size)
        if self._steady is not None:
            self._steady.record(latency_ms, size)

    def print_summary(self) -> None:
        for stats in (self._stats, self._steady):
            if stats is None:
                continue
            if self._args.json:
                print_json(stats.summary() | {"failed": self.failed})
            else:
                print(stats.total_line())
        if self.failed > 1:
            warn(f"{self.failed} records failed")
