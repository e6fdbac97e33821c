"""Performance tests in Kafka's shape, and dumps of a live broker's files."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Commands

NewTopic = Callable[..., str]
NUMBER = r"\d+\.\d+"


def test_producing_is_measured_in_kafkas_line(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "2")
    out = commands.ok(
        "producer-perf-test", "--topic", topic, "--num-records", "5000", "--record-size", "100",
        "--throughput", "-1", "--producer-props", "linger.ms=5", "acks=1",
    )  # fmt: skip
    assert re.fullmatch(
        rf"5000 records sent, {NUMBER} records/sec \({NUMBER} MB/sec\), {NUMBER} ms avg latency, "
        rf"{NUMBER} ms max latency, \d+ ms 50th, \d+ ms 95th, \d+ ms 99th, \d+ ms 99\.9th\.\n",
        out,
    )
    offsets = commands.ok("get-offsets", "--topic", topic).split()
    assert sum(int(line.rpartition(":")[2]) for line in offsets) == 5000


def test_consuming_is_measured_in_kafkas_columns(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "2")
    commands.ok(
        "producer-perf-test", "--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput", "-1"
    )
    head, line = commands.ok("consumer-perf-test", "--topic", topic, "--num-records", "5000").splitlines()
    assert head == (
        "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
        "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
    )
    moment = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d:\d{3}"
    assert re.fullmatch(rf"{moment}, {moment}, 0\.4768, {NUMBER}, 5000, {NUMBER}, 0, \d+, {NUMBER}, {NUMBER}", line)
    numbers = json.loads(commands.ok("consumer-perf-test", "--topic", topic, "--num-records", "5000", "--json"))
    assert numbers["data.consumed.in.nMsg"] == 5000


def test_too_few_records_are_told(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic()
    result = commands("consumer-perf-test", "--topic", topic, "--messages", "1", "--timeout", "200", "--hide-header")
    assert result.code == 0
    assert "WARNING: Exiting before consuming the expected number of records: timeout (200 ms)" in result.err


def test_the_throughput_is_held(commands: Commands, new_topic: NewTopic) -> None:
    topic = new_topic("--partitions", "1")
    summary = json.loads(
        commands.ok(
            "producer-perf-test", "--topic", topic, "--num-records", "200", "--payload-monotonic",
            "--throughput", "1000", "--json",
        )
    )  # fmt: skip
    assert summary["recordsSent"] == 200
    assert summary["recordsPerSec"] <= 1010


def test_a_live_brokers_segment_is_dumped(
    commands: Commands, new_topic: NewTopic, kafka_broker: Any, tmp_path: Path
) -> None:
    topic = new_topic("--partitions", "1")
    first, second = "first " * 100, "second " * 100  # librdkafka leaves alone what does not get smaller
    commands.ok("console-producer", "--topic", topic, "--compression-codec", "zstd", stdin=f"{first}\n{second}\n")
    log = Path(kafka_broker.data_dir) / f"{topic}-0" / "00000000000000000000.log"
    done = subprocess.run(
        [sys.executable, "-m", "moldau", "run-class", "kafka.tools.DumpLogSegments", "--files", str(log),
         "--print-data-log"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"Dumping {log}", "Log starting offset: 0"]
    assert all("isvalid: true" in line for line in lines if line.startswith("baseOffset"))
    assert any("compresscodec: zstd" in line for line in lines)
    payloads = [line.rpartition(" payload: ")[2] for line in lines if line.startswith("|")]
    assert payloads == [first, second]
    assert done.stderr == ""
