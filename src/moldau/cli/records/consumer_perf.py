"""`kafka-consumer-perf-test`: how fast records are consumed.

Without --group it reads every partition by assignment, so the time to join a group is zero.
"""

from __future__ import annotations

import argparse
import datetime
import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import (
    CommandParser,
    load_properties,
    parse_key_values,
    print_json,
    run_client,
    topic_pattern,
    warn,
)
from moldau.cli.records.assignment import Assignment

if TYPE_CHECKING:
    from moldau.cli.records.confluent import Interruption

_EXAMPLE = "{prog} --bootstrap-server localhost:9092 --topic load --num-records 1000000"
_BATCH_MAX = 10_000
_POLL_S = 0.1
_METADATA_TIMEOUT_MS = 60_000
_METADATA_MAX_AGE_MS = 300_000
_MB = 1024 * 1024
_COLUMNS = (
    "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
)
# Java's date letters that people use, longest first, and Python's.
_DATE_PARTS = {"yyyy": "%Y", "SSS": "%f", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


def main(argv: Sequence[str] | None = None, prog: str = "kafka-consumer-perf-test") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    parser.require_connection(args)
    if (args.topic is None) == (args.include is None):
        parser.error("Exactly one of --topic and --include is required")
    parser.require(args, "--num-records")
    if args.reporting_interval <= 0:
        parser.error("--reporting-interval should be greater than zero")
    return run_client(prog, lambda: _measure(args))


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Measure consuming.", _EXAMPLE)
    parser.add_connection(old_name="--broker-list")
    parser.add_argument("--topic", metavar="NAME", help="the topic to read")
    parser.add_argument(
        "--include", metavar="REGEX", help="regular expression of the topics to read, instead of --topic"
    )
    parser.add_argument("--num-records", "--messages", metavar="N", type=int, help="number of records")
    parser.add_argument("--group", metavar="ID", help="read as a member of this consumer group")
    parser.add_argument(
        "--fetch-size", metavar="BYTES", type=int, default=_MB, help="maximum bytes per partition and fetch"
    )
    parser.add_argument(
        "--socket-buffer-size", metavar="BYTES", type=int, default=2 * _MB, help="socket receive buffer size in bytes"
    )
    parser.add_flag("--from-latest", "start at the end if the group has no committed offset")
    parser.add_argument(
        "--timeout",
        metavar="MS",
        type=int,
        nargs="?",
        const=10_000,
        default=10_000,
        help="maximum time between two records",
    )
    parser.add_argument(
        "--command-property", metavar="KEY=VALUE", action="append", default=[], help="consumer property"
    )
    parser.add_argument(
        "--command-config", "--consumer.config", metavar="FILE", help="properties file for the consumer"
    )
    parser.add_flag("--show-detailed-stats", "print a line for each reporting interval instead of a summary")
    parser.add_argument(
        "--reporting-interval", metavar="MS", type=int, default=5000, help="time between two lines of output"
    )
    parser.add_argument(
        "--date-format", metavar="FORMAT", default="yyyy-MM-dd HH:mm:ss:SSS", help="date format of the output"
    )
    parser.add_flag("--hide-header", "omit the header line")
    for name in ("--threads", "--num-fetch-threads"):
        parser.add_argument(name, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--print-metrics", action="store_true", help=argparse.SUPPRESS)
    parser.add_flag("--json", "print only the summary, as JSON")
    return parser


def format_time(moment_s: float, pattern: str) -> str:
    """A moment in a java.text.SimpleDateFormat pattern of year to milliseconds."""
    moment = datetime.datetime.fromtimestamp(moment_s)

    def part(match: re.Match[str]) -> str:
        if match[0] == "SSS":
            return f"{moment.microsecond // 1000:03d}"
        return moment.strftime(_DATE_PARTS[match[0]])

    return re.sub("|".join(_DATE_PARTS), part, pattern)


def _measure(args: argparse.Namespace) -> int:
    from moldau.cli.records import confluent

    props = load_properties(args.command_config) | parse_key_values(args.command_property)
    group = args.group or props.get("group.id")
    props |= {
        "group.id": group or "perf-consumer",
        "receive.buffer.bytes": str(args.socket_buffer_size),
        "max.partition.fetch.bytes": str(args.fetch_size),
        "auto.offset.reset": "latest" if args.from_latest else "earliest",
        "check.crcs": "false",
    }
    props.setdefault("isolation.level", "read_uncommitted")
    if args.print_metrics:
        warn("WARN --print-metrics is not supported and has no effect")
    if group is None:
        props["enable.auto.commit"] = "false"
    consumer = confluent.consumer(confluent.client_config(props, args.bootstrap_server, "perf-consumer-client"))
    with confluent.Interruption() as interruption:
        try:
            measured = Run(args, consumer, interruption, in_group=group is not None)
            return measured.measure(props["auto.offset.reset"])
        finally:
            consumer.close()


class Run:
    def __init__(self, args: argparse.Namespace, consumer: Any, interruption: Interruption, *, in_group: bool) -> None:
        self._interruption = interruption
        self._args = args
        self._consumer = consumer
        self._in_group = in_group
        self._join_started = time.perf_counter()
        self._join_s = 0.0
        self._window_join_s = 0.0
        self.records = 0
        self.bytes = 0

    def measure(self, start_at: str) -> int:
        args = self._args
        if not args.hide_header and not args.json:
            print(("time, threadId, " if args.show_detailed_stats else "start.time, end.time, ") + _COLUMNS)
        began_at, began = time.time(), time.perf_counter()
        self._consume(self._start(start_at))
        elapsed = time.perf_counter() - began
        if self.records < args.num_records and not self._interruption.requested:
            warn(
                "WARNING: Exiting before consuming the expected number of records: timeout "
                f"({args.timeout} ms) exceeded. You can use the --timeout option to increase the timeout."
            )
        if args.json:
            print_json(self._numbers(elapsed))
        elif not args.show_detailed_stats:
            times = [format_time(moment, args.date_format) for moment in (began_at, began_at + elapsed)]
            print(", ".join([*times, *_cells(self._numbers(elapsed))]))
        return 0

    def _start(self, start_at: str) -> Assignment | None:
        if self._in_group:
            topic = self._args.topic or f"^({topic_pattern(self._args.include).pattern})$"
            self._consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
            return None
        return Assignment(
            self._consumer,
            topic=self._args.topic,
            include=self._args.include,
            start=start_at,
            api_timeout_ms=_METADATA_TIMEOUT_MS,
            max_age_ms=_METADATA_MAX_AGE_MS,
        )

    def _on_assign(self, consumer: Any, partitions: Sequence[Any]) -> None:
        joined_s = time.perf_counter() - self._join_started
        self._join_s += joined_s
        self._window_join_s += joined_s

    def _on_revoke(self, consumer: Any, partitions: Sequence[Any]) -> None:
        self._join_started = time.perf_counter()

    def _consume(self, assignment: Assignment | None) -> None:
        args = self._args
        window_start = last_record = time.perf_counter()
        window_records = window_bytes = 0
        while self.records < args.num_records and not self._interruption.requested:
            if assignment is not None:
                assignment.refresh(self._interruption)
            batch = self._consumer.consume(min(_BATCH_MAX, args.num_records - self.records), _POLL_S)
            now = time.perf_counter()
            for message in batch:
                if message.error() is None:
                    self.records += 1
                    self.bytes += len(message) + len(message.key() or b"")
            if batch:
                last_record = now
            elif (now - last_record) * 1000 > args.timeout:
                return
            if (now - window_start) * 1000 >= args.reporting_interval:
                if args.show_detailed_stats and not args.json:
                    self._print_window(now - window_start, self.records - window_records, self.bytes - window_bytes)
                window_start, window_records, window_bytes = now, self.records, self.bytes
                self._window_join_s = 0.0

    def _print_window(self, elapsed: float, records: int, size: int) -> None:
        fetch_s = elapsed - self._window_join_s
        rate = 1 / fetch_s if fetch_s > 0 else 0.0
        cells = (
            format_time(time.time(), self._args.date_format),
            "0",
            f"{self.bytes / _MB:.4f}",
            f"{size / _MB / elapsed:.4f}",
            f"{self.records}",
            f"{records / elapsed:.4f}",
            f"{self._window_join_s * 1000:.0f}",
            f"{fetch_s * 1000:.0f}",
            f"{size / _MB * rate:.4f}",
            f"{records * rate:.4f}",
        )
        print(", ".join(cells), flush=True)

    def _numbers(self, elapsed: float) -> dict[str, float]:
        fetch_s = max(elapsed - self._join_s, 1e-9)
        mb = self.bytes / _MB
        return {
            "data.consumed.in.MB": mb,
            "MB.sec": mb / elapsed,
            "data.consumed.in.nMsg": self.records,
            "nMsg.sec": self.records / elapsed,
            "rebalance.time.ms": round(self._join_s * 1000),
            "fetch.time.ms": round(fetch_s * 1000),
            "fetch.MB.sec": mb / fetch_s,
            "fetch.nMsg.sec": self.records / fetch_s,
        }


def _cells(numbers: dict[str, float]) -> list[str]:
    return [f"{number}" if isinstance(number, int) else f"{number:.4f}" for number in numbers.values()]
