"""The numbers of the performance tests are right, and in the shape of Kafka's lines."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from moldau.cli.records.consumer_perf import format_time
from moldau.cli.records.producer_perf import Stats, _parser, payloads
from moldau.errors import ConfigError


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_total_is_kafkas_line() -> None:
    clock = Clock()
    stats = Stats(1000, 5000, clock=clock)
    for latency in range(1000):
        stats.record(latency, 1048576)
    clock.now += 2.0
    assert stats.total_line() == (
        "1000 records sent, 500.000000 records/sec (500.00 MB/sec), 499.50 ms avg latency, "
        "999.00 ms max latency, 500 ms 50th, 950 ms 95th, 990 ms 99th, 999 ms 99.9th."
    )


def test_every_window_has_a_line_of_its_own() -> None:
    clock = Clock()
    lines: list[str] = []
    stats = Stats(10, 1000, report=lines.append, clock=clock)
    for latency in (10, 20):
        clock.now += 0.5
        stats.record(latency, 524288)
    clock.now += 1.0
    stats.record(5, 0)
    assert lines == [
        "2 records sent, 2.0 records/sec (1.00 MB/sec), 15.0 ms avg latency, 20.0 ms max latency.",
        "1 records sent, 1.0 records/sec (0.00 MB/sec), 5.0 ms avg latency, 5.0 ms max latency.",
    ]


def test_no_records_is_no_crash() -> None:
    assert Stats(10, 1000, clock=Clock()).total_line().startswith("0 records sent")


def test_latencies_are_sampled_when_there_are_too_many() -> None:
    stats = Stats(1_000_000, 5000, clock=Clock())
    for latency in range(10):
        stats.record(latency, 1)
    assert stats.summary()["latencyMs99.9"] == 8  # every second one is kept


def _payloads(*argv: str) -> list[bytes]:
    return list(payloads(_parser("p").parse_args(["--num-records", "5", *argv])))


def test_payloads_are_letters_of_the_asked_size_and_the_same_every_run() -> None:
    values = _payloads("--record-size", "20")
    assert len(set(values)) == 5
    assert all(len(value) == 20 and value.isalpha() and value.isupper() for value in values)
    assert values == _payloads("--record-size", "20")


def test_payloads_may_count() -> None:
    assert _payloads("--payload-monotonic") == [b"0", b"1", b"2", b"3", b"4"]


def test_payloads_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "payloads"
    file.write_text("one,two,,")
    assert set(_payloads("--payload-file", str(file), "--payload-delimiter", ",")) <= {b"one", b"two"}
    file.write_text("")
    with pytest.raises(ConfigError, match="no payloads"):
        _payloads("--payload-file", str(file))


def test_times_are_printed_in_javas_patterns() -> None:
    moment = datetime.datetime(2026, 3, 4, 5, 6, 7, 89000).timestamp()
    assert format_time(moment, "yyyy-MM-dd HH:mm:ss:SSS") == "2026-03-04 05:06:07:089"
    assert format_time(moment, "dd/MM") == "04/03"
