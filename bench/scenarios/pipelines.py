"""Pipelines beside the same jobs by hand with Spark's Kafka connector, and as Kafka Streams programs.

All on the same broker and data: clicks as JSON in two partitions, and a topic of users. `bench.pipeline_work` has the
jobs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from bench import jvm_connector, kafka_streams
from bench.jobs.clicks import PAGES
from bench.jobs.pipeline_processes import SETTLE_S
from bench.metrics import (
    JVM,
    JVM_BEST,
    MOLDAU,
    SHORT_NAMES,
    STREAMS,
    Metric,
    Sample,
    at_most,
    ratio_at_least,
)
from bench.pipeline_work import WORKS
from bench.scenarios.scenario import Bench
from bench.scenarios.spark import WARM_UP_PASSES, SparkScenario
from bench.servers.server import ServerProcess
from bench.topics import create_topic
from moldau.pipelines.engine.idle import WAIT_MS

PARTITIONS = 2
MICRO_BATCHES = 8
# Of event time: far more than the delay of the watermark, so that windows close all the time.
SPAN_S = 7_200
# Micro-batches as a topic of a few thousand rows per second has them: their fixed costs count, not those of a row.
SMALL_BATCH_ROWS = 12_500
SMALL_BATCHES = 20
FIRST_RESULT_RECORDS = 10_000
IDLE_PIPELINES = 10

RIVALS = (JVM, JVM_BEST, STREAMS)
TITLES = {"count": "windowed count", "join": "stream–table join"}


class PipelineScenario(SparkScenario):
    servers = (MOLDAU,)
    repeats_itself = True

    def obstacle(self, say: Callable[[str], None]) -> str | None:
        return super().obstacle(say) or kafka_streams.obstacle(say)


class PipelineThroughput(PipelineScenario):
    """Clicks as JSON in two partitions; each job by each contender, after passes that do not count: as a pipeline
    (exactly once) and by hand with Spark's Kafka connector (at least once, the best it has) in turns in one Spark
    session with the settings of `moldau.spark.session()`, and as a Kafka Streams program (exactly_once_v2, two
    threads, its defaults otherwise) in a process of its own. A pass reads all clicks in eight micro-batches; the rate
    is that of all but the first. The same again in twenty micro-batches of 12,500 rows, without Kafka Streams, which
    has none. What is written is compared row by row. CPU is that of the whole pass, without the broker's. Kafka Streams
    keeps its windows open, because it drops most of a backlog as late otherwise.
    """

    name = "pipeline_throughput"

    def __init__(self) -> None:
        self._rates = {(work, rival): self._rate(work, rival) for work in WORKS for rival in RIVALS}
        self._small = {work: self._small_rate(work) for work in WORKS}
        self._cpu = {(work, rival): self._cost(work, rival) for work in WORKS for rival in (JVM, STREAMS)}
        self.metrics = (*self._rates.values(), *self._small.values(), *self._cpu.values())

    def _rate(self, work: str, rival: str) -> Metric:
        title = f"{TITLES[work]}, against {_name(rival)}"
        goal = ratio_at_least(1.3) if rival == JVM else None
        return Metric(f"pipeline_{work}_{rival}", title, "rows/s", "higher", goal, rival=rival)

    def _small_rate(self, work: str) -> Metric:
        title = f"{TITLES[work]} in small micro-batches, against {_name(JVM)}"
        return Metric(f"pipeline_{work}_small", title, "rows/s", "higher", ratio_at_least(1.3), rival=JVM)

    def _cost(self, work: str, rival: str) -> Metric:
        title = f"CPU of 1 M rows, {TITLES[work]}, against {_name(rival)}"
        return Metric(f"pipeline_{work}_{rival}_cpu", title, "CPU s", "lower", rival=rival)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.start()
        samples: list[Sample] = []
        records = bench.sizes.pipeline_records
        clicks, users = fill(bench, server, records, PARTITIONS)
        few_clicks, few_users = fill(bench, server, SMALL_BATCHES * SMALL_BATCH_ROWS, PARTITIONS)
        for work in WORKS:
            job = _job(bench, work, clicks, users, records)
            streams = {**job, "output": f"{work}-streams", "threads": _threads()}
            by_streams = bench.drivers.run(server, "streams_passes", streams).result
            in_spark = {
                **_in_spark(job, f"{work}-spark", records // MICRO_BATCHES),
                "contenders": {MOLDAU: {}, JVM: {}, JVM_BEST: dict(jvm_connector.BEST_READ)},
                "further_outputs": [by_streams["output"]] if work == "join" else [],
            }
            by_spark = bench.drivers.run(server, "pipeline_passes", in_spark).result
            expect_same_rows(work, by_spark["outputs"], records)
            for measured in (*by_spark["passes"], *({"contender": STREAMS, **each} for each in by_streams["passes"])):
                samples += self._samples(work, records, measured)
            few = _job(bench, work, few_clicks, few_users, SMALL_BATCHES * SMALL_BATCH_ROWS)
            in_small_batches = _in_spark(few, f"{work}-small", SMALL_BATCH_ROWS)
            by_spark = bench.drivers.run(server, "pipeline_passes", in_small_batches).result
            expect_same_rows(work, by_spark["outputs"], few["records"])
            samples += [
                Sample(self._small[work], each["rows"] / each["seconds"], of=each["contender"])
                for each in by_spark["passes"]
            ]
        server.stop()
        return samples

    def _samples(self, work: str, records: int, measured: dict[str, Any]) -> list[Sample]:
        contender = measured["contender"]
        rate = measured["rows"] / measured["seconds"]
        cpu_s = measured["cpu_s"] / records * 1_000_000
        rivals = RIVALS if contender == MOLDAU else (contender,)
        samples = [Sample(self._rates[work, rival], rate, of=contender) for rival in rivals]
        return samples + [
            Sample(self._cpu[work, rival], cpu_s, of=contender) for rival in rivals if (work, rival) in self._cpu
        ]


class PipelineFirstResult(PipelineScenario):
    """`moldau pipeline run FILE` from the start of the process to the first committed record in its output topic, over
    10,000 clicks, with the class archive that the set-up has made; a script by hand in a plain Spark session; and a
    compiled Kafka Streams program (the join alone: it writes no window before the next day's clicks). Memory is that
    of all processes, shared pages counted once, a while after the first result of the last run. One run of each does
    not count: it fills the page cache."""

    name = "pipeline_first_result"

    def __init__(self) -> None:
        pairs = [(work, rival) for work in WORKS for rival in (JVM, STREAMS) if (work, rival) != ("count", STREAMS)]
        self._times = {pair: self._metric(*pair, "process start to first result", "s") for pair in pairs}
        self._memory = {pair: self._metric(*pair, "memory", "MB") for pair in pairs}
        self.metrics = (*self._times.values(), *self._memory.values())

    def _metric(self, work: str, rival: str, what: str, unit: str) -> Metric:
        goal = at_most(8) if unit == "s" else None
        title = f"{what}, {TITLES[work]}, against {_name(rival)}"
        return Metric(f"pipeline_first_{work}_{rival}_{unit.lower()}", title, unit, "lower", goal, rival=rival)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.start()
        clicks, users = fill(bench, server, FIRST_RESULT_RECORDS, PARTITIONS)
        jars = ",".join(jvm_connector.jar_paths())
        uncounted = 1 if bench.sizes.warms_up_fully else 0
        samples: list[Sample] = []
        rounds = uncounted + bench.repeat
        for number in range(rounds):
            is_last = number == rounds - 1
            for work in WORKS:
                rivals = [rival for each, rival in self._times if each == work]
                for contender in (MOLDAU, *rivals):
                    topics = [server.bootstrap, clicks, users, create_topic(server)]
                    settle_s = SETTLE_S if is_last else 0
                    job = {"work": work, "contender": contender, "topics": topics, "jars": jars, "settle_s": settle_s}
                    result = bench.drivers.run(server, "pipeline_first_result", job).result
                    bench.say(f"  round {number + 1} of {rounds}: {work}, {contender}: {_costs(result)}")
                    if number < uncounted:
                        continue
                    for rival in rivals if contender == MOLDAU else (contender,):
                        samples.append(Sample(self._times[work, rival], result["seconds"], of=contender))
                        if is_last:
                            samples.append(Sample(self._memory[work, rival], result["memory_mb"], of=contender))
        server.stop()
        return samples


class PipelineIdle(PipelineScenario):
    """`moldau pipeline run` with pipelines that copy a topic and have nothing to do: CPU of all its processes, without
    the broker's. A pipeline looks for new records once a second, and waits at the broker in between. What a look, a
    micro-batch that finds nothing, costs at most is the difference between ten pipelines and one, by nine; what the
    supervisor does for each pipeline once a second is in it, too."""

    name = "pipeline_idle"
    look = Metric("pipeline_idle_look", "a micro-batch that finds nothing", "CPU ms", "lower", at_most(10), rival=JVM)
    one = Metric("pipeline_idle_one", "one idle pipeline in one run", "% of a core", "lower", rival=JVM)
    ten = Metric("pipeline_idle_ten", "ten idle pipelines in one run", "% of a core", "lower", at_most(5), rival=JVM)
    memory = Metric("pipeline_idle_memory", "memory of ten idle pipelines", "MB", "lower", rival=JVM)
    metrics = (look, one, ten, memory)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        server.start()
        samples: list[Sample] = []
        for number in range(bench.repeat):
            one, ten = (self._idle(bench, server, count) for count in (1, IDLE_PIPELINES))
            cores_of_one, cores_of_ten = (each["cpu_s"] / each["seconds"] for each in (one, ten))
            percent = f"one {cores_of_one * 100:.1f} %, ten {cores_of_ten * 100:.1f} %"
            bench.say(f"  round {number + 1} of {bench.repeat}: {percent} of a core")
            look_ms = (cores_of_ten - cores_of_one) / (IDLE_PIPELINES - 1) * WAIT_MS
            samples.append(Sample(self.look, look_ms, of=MOLDAU))
            samples.append(Sample(self.one, cores_of_one * 100, of=MOLDAU))
            samples.append(Sample(self.ten, cores_of_ten * 100, of=MOLDAU))
            samples.append(Sample(self.memory, ten["memory_mb"], of=MOLDAU))
        server.stop()
        return samples

    def _idle(self, bench: Bench, server: ServerProcess, count: int) -> dict[str, Any]:
        pipelines = []
        for _ in range(count):
            clicks, users = fill(bench, server, 1, 1)
            pipelines.append([server.bootstrap, clicks, users, create_topic(server)])
        job = {"pipelines": pipelines, "settle_s": SETTLE_S, "seconds": bench.sizes.pipeline_idle_seconds}
        return bench.drivers.run(server, "idle_pipelines", job).result


def fill(bench: Bench, server: ServerProcess, records: int, partitions: int) -> tuple[str, str]:
    clicks, users = create_topic(server, partitions), create_topic(server, partitions)
    job = {"clicks": clicks, "users": users, "records": records, "span_s": SPAN_S}
    bench.drivers.run(server, "produce_clicks", job)
    return clicks, users


def _job(bench: Bench, work: str, clicks: str, users: str, records: int) -> dict[str, Any]:
    return {
        "work": work,
        "clicks": clicks,
        "users": users,
        "records": records,
        "warm_up_passes": WARM_UP_PASSES if bench.sizes.warms_up_fully else 1,
        "rounds": bench.repeat,
    }


def _in_spark(job: dict[str, Any], output: str, batch_rows: int) -> dict[str, Any]:
    return {
        **job,
        "output": output,
        "master": f"local[{_threads()}]",
        "jars": jvm_connector.jar_paths(),
        "batch_rows": batch_rows,
        "contenders": {MOLDAU: {}, JVM: {}},
        "further_outputs": [],
    }


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def expect_same_rows(work: str, outputs: dict[str, list[int]], records: int) -> None:
    """Who writes other rows than the others, or fewer, is not compared."""
    if len({tuple(digest) for digest in outputs.values()}) != 1:
        raise AssertionError(f"{work}: contenders wrote different rows: {outputs}")
    written, _ = next(iter(outputs.values()))
    if not (written == records if work == "join" else 0 < written <= records // PAGES * PAGES):
        raise AssertionError(f"{work}: {written} rows were written for {records} clicks")


def _costs(result: dict[str, Any]) -> str:
    return f"{result['seconds']:.1f} s, {result['cpu_s']:.1f} CPU s"


def _name(rival: str) -> str:
    return SHORT_NAMES[rival]
