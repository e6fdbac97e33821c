"""A pipeline at a steady rate, watched from outside: whether its memory stays flat.

`moldau pipeline run` counts clicks per 10 seconds of event time and page, with a watermark, so state comes and goes. A
producer sends clicks at a steady rate. The memory of the JVM and of all Python processes is sampled, shared pages
counted once, and pages of files not at all: how they are shared depends on what else runs. The slope is that of a line
through the samples of the second half, because Java and Python take their time to reach their size. Java's heap has a
fixed size and all its pages from the start, or it would grow and shrink at its leisure: what grows then is outside of
it. What is in use inside is a kind of its own, measured after a collection. Compiled code is left out: Java compiles
what gets hot for half an hour, into a cache that has a limit.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from soak.broker_process import BrokerProcess
from soak.pipeline_process import family, running, said

RATE = 1_000  # clicks per second
PAGES = 100
SAMPLE_S = 5.0
REPORT_S = 60.0
START_TIMEOUT_S = 180
CODE = "compiled code"
# Java loads classes and compiles code for minutes: what grows before that says nothing.
JUDGED_S_MIN = 300.0
# Per minute, of a size of some 500 MB: half a percent. What grows by that for a day has doubled twice.
SLOPE_MB_MAX = 2.5
# In all, over the second half: samples differ by a few MB, so a short run sees no small slope.
GROWTH_MB_MAX = 10.0

FILE = """\
name: soak
sources:
  clicks:
    connector: topic
    topic: clicks
    format: json
    schema: page STRING, at TIMESTAMP
    watermark: at 5 seconds
steps:
  counts:
    sql: SELECT window.start AS start, page, count(*) AS views FROM clicks GROUP BY window(at, '10 seconds'), page
sinks:
  counts_out:
    connector: topic
    topic: counts
    key: page
settings:
  kafka.bootstrap.servers: {bootstrap}
  spark:
    spark.driver.memory: 600m
    spark.driver.extraJavaOptions: -Xms600m -XX:+AlwaysPreTouch
"""


@dataclass
class Outcome:
    clicks: int = 0
    counted: int = 0
    samples: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # by kind: (minutes, MB)
    problems: list[str] = field(default_factory=list)

    def second_half(self, kind: str) -> list[tuple[float, float]]:
        samples = self.samples[kind]
        return samples[len(samples) // 2 :]

    def slope(self, kind: str) -> float:
        """MB per minute over the second half."""
        return slope(self.second_half(kind))

    def growth(self, kind: str) -> float:
        """MB over the second half, by the slope."""
        samples = self.second_half(kind)
        return self.slope(kind) * (samples[-1][0] - samples[0][0]) if samples else 0.0


def run_pipeline(broker: BrokerProcess, *, seconds: float, report: Callable[[str], None]) -> Outcome:
    outcome = Outcome()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50})
    with tempfile.TemporaryDirectory(prefix="moldau-soak-pipeline-") as name:
        folder = Path(name)
        (folder / "soak.yaml").write_text(FILE.format(bootstrap=broker.bootstrap))
        outcome.clicks += _send(producer, 1)
        producer.flush()
        with running(folder, "soak.yaml", "--json") as process:
            _await_state(process, folder)
            started = time.monotonic()
            next_sample = next_report = started
            while (now := time.monotonic()) < started + seconds:
                due = int((now - started) * RATE) - outcome.clicks
                outcome.clicks += _send(producer, due)
                producer.poll(0)
                if now >= next_sample:
                    next_sample += SAMPLE_S
                    _sample(outcome, process.pid, (now - started) / 60)
                    if now >= next_report:
                        next_report += REPORT_S
                        report(_line(outcome))
                if process.poll() is not None:
                    outcome.problems.append(f"the pipeline ended with code {process.returncode}: {said(folder)}")
                    return outcome
                time.sleep(0.02)
            producer.flush()
        outcome.counted = _counted(broker.bootstrap)
    judge(outcome, is_long=seconds >= JUDGED_S_MIN)
    return outcome


def judge(outcome: Outcome, *, is_long: bool = True) -> None:
    for kind in outcome.samples if is_long else ():
        if outcome.slope(kind) > SLOPE_MB_MAX and outcome.growth(kind) > GROWTH_MB_MAX:
            outcome.problems.append(f"memory of {kind} grows by {outcome.slope(kind):.1f} MB per minute")
    # Windows that were open at the end are not written.
    if not 0.5 * outcome.clicks < outcome.counted <= outcome.clicks:
        outcome.problems.append(f"{outcome.counted:,} of {outcome.clicks:,} clicks were counted")


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Of the line with the least squares."""
    count = len(samples)
    mean_x, mean_y = (sum(sample[axis] for sample in samples) / max(count, 1) for axis in (0, 1))
    below = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / below if below else 0.0


def _send(producer: Producer, count: int) -> int:
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for number in range(count):
        producer.produce("clicks", json.dumps({"page": f"/{number % PAGES}", "at": at}).encode())
    return max(count, 0)


def _await_state(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while '"RUNNING"' not in said(folder):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the pipeline does not run: {said(folder)}")
        time.sleep(0.2)


def _sample(outcome: Outcome, pid: int, minutes: float) -> None:
    sizes = {"the JVM": 0.0, "Python": 0.0, **_heap_and_code(pid)}
    for process in family(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            kind = "the JVM" if process.name() == "java" else "Python"
            sizes[kind] += _own_mb(process)
    sizes["the JVM"] -= sizes.pop(CODE, 0.0)
    for kind, size in sizes.items():
        outcome.samples.setdefault(kind, []).append((minutes, size))


def _own_mb(process: psutil.Process) -> float:
    """What the process has besides files; forks that share it count it once altogether. Linux alone tells."""
    try:
        rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    except OSError:
        return float(process.memory_info().rss) / 1_000_000
    found = re.search(r"^Pss_Anon:\s+(\d+) kB", rollup, re.MULTILINE)
    return int(found[1]) * 1024 / 1_000_000 if found else float(process.memory_info().rss) / 1_000_000


def _heap_and_code(pid: int) -> dict[str, float]:
    """In MB: the heap in use, after a full collection, and compiled code; nothing without a JDK."""
    java = next((process.pid for process in family(pid) if process.name() == "java"), None)
    if java is None or shutil.which("jcmd") is None:
        return {}
    _jcmd(java, "GC.run")
    heap = re.findall(r"total \d+K, used (\d+)K", _jcmd(java, "GC.heap_info"))
    code = re.findall(r"size=\d+Kb used=(\d+)Kb", _jcmd(java, "Compiler.codecache"))
    return {"Java's live heap": sum(map(int, heap)) / 1000, CODE: sum(map(int, code)) / 1000}


def _jcmd(pid: int, command: str) -> str:
    return subprocess.run(["jcmd", str(pid), command], capture_output=True, text=True, check=False).stdout


def _line(outcome: Outcome) -> str:
    sizes = ", ".join(f"{kind} {samples[-1][1]:.0f} MB" for kind, samples in outcome.samples.items())
    return f"{outcome.clicks:,} clicks: {sizes}"


def _counted(bootstrap: str) -> int:
    """The sum of all counts that were written."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "soak", "enable.auto.commit": False})
    partitions = [
        TopicPartition("counts", index, 0) for index in consumer.list_topics("counts").topics["counts"].partitions
    ]
    ends = {tp.partition: consumer.get_watermark_offsets(tp)[1] for tp in partitions}
    consumer.assign(partitions)
    total = 0
    while any(tp.offset < ends[tp.partition] for tp in consumer.position(partitions)):
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                total += json.loads(message.value() or b"{}").get("views", 0)
    consumer.close()
    return total
