"""Pipelines, and the same jobs by hand with Spark's Kafka connector, in one Spark session; and with Kafka Streams.

Each pass reads the whole topic in micro-batches of the same size, from a new checkpoint into a new topic. The rate is
that of all batches but the first, so neither the start of a query nor its planning is in it.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bench import kafka_streams
from bench.jobs.job import Parameters, Ready
from bench.jobs.spark import start_session
from bench.metrics import MOLDAU
from bench.pipeline_work import STREAMS_DELAY_S, Topics, by_hand, write_pipeline
from bench.progress import say
from bench.tree_cpu import TreeCpu

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

PASS_TIMEOUT_S = 240


def pipeline_passes(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """One work by each contender in turns."""
    with tempfile.TemporaryDirectory(prefix="moldau-bench-pipelines-") as name:
        folder = Path(name)
        spark = start_session("moldau", parameters["master"], parameters["jars"], folder)
        contenders: dict[str, dict[str, str]] = parameters["contenders"]
        passes: list[dict[str, Any]] = []
        outputs: dict[str, str] = {}
        ready()
        started = time.perf_counter()
        total = parameters["warm_up_passes"] + parameters["rounds"]
        for number in range(total):
            names = list(contenders) if number % 2 == 0 else list(reversed(contenders))
            for contender in names:
                outputs[contender] = f"{parameters['output']}-{contender}-{number}"
                topics = Topics(parameters["bootstrap"], parameters["clicks"], parameters["users"], outputs[contender])
                checkpoint = folder / f"{contender}-{number}"
                measured = _pass(_starter(spark, contender, parameters, topics, checkpoint))
                rate = measured["rows"] / measured["seconds"]
                costs = f"{rate:,.0f} rows/s, {measured['cpu_s']:.1f} CPU s"
                say(f"pass {number + 1} of {total}: {parameters['work']}, {contender}: {costs}")
                if number >= parameters["warm_up_passes"]:
                    passes.append({"contender": contender, **measured})
        seconds = time.perf_counter() - started
        results = {contender: output_digest(spark, parameters, topic) for contender, topic in outputs.items()}
        for further in parameters["further_outputs"]:
            results[further] = output_digest(spark, parameters, further)
        spark.stop()
    return {"seconds": seconds, "passes": passes, "outputs": results}


def _starter(
    spark: SparkSession,
    contender: str,
    parameters: Parameters,
    topics: Topics,
    folder: Path,
) -> Callable[[], StreamingQuery]:
    folder.mkdir()
    size = {"maxOffsetsPerTrigger": parameters["batch_rows"]}
    if contender != MOLDAU:
        session = spark.newSession()
        writer = by_hand(session, parameters["work"], topics, **size, **parameters["contenders"][contender])
        return writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start
    from moldau.pipelines.doors.yaml_file import load_pipeline
    from moldau.pipelines.engine.queries import Settings, plan_queries, start_query

    settings = {"trigger": "available now"}
    pipeline = load_pipeline(write_pipeline(folder, "bench", parameters["work"], topics, settings, **size))
    (plan,) = plan_queries(pipeline)
    return lambda: start_query(spark, plan, Settings.of(pipeline))


def _pass(start: Callable[[], StreamingQuery]) -> dict[str, Any]:
    with TreeCpu() as cpu:
        query = start()
        if not query.awaitTermination(PASS_TIMEOUT_S):
            raise TimeoutError(f"a pass did not end within {PASS_TIMEOUT_S} s")
    first, *others = sorted(query.recentProgress, key=lambda progress: progress["batchId"])
    rows = sum(progress["sources"][0]["numInputRows"] for progress in others)
    milliseconds = sum(progress["durationMs"]["triggerExecution"] for progress in others)
    return {
        "rows": rows,
        "seconds": milliseconds / 1000,
        "cpu_s": cpu.seconds,
        "all_rows": rows + first["sources"][0]["numInputRows"],
    }


def output_digest(spark: SparkSession, parameters: Parameters, topic: str) -> list[int]:
    """Of what was written: how much, and a sum that is the same only for the same rows."""
    where = {"kafka.bootstrap.servers": parameters["bootstrap"], "subscribe": topic}
    typed = spark.read.format("moldau").options(**where, **{"value.format": "json"})
    columns = (
        "minute TIMESTAMP, page STRING, views BIGINT"
        if parameters["work"] == "count"
        else "user STRING, ms INT, country STRING"
    )
    rows = typed.option("value.schema", columns).schema(f"value STRUCT<{columns}>").load().select("value.*")
    (row,) = rows.selectExpr("count(*)", f"sum(xxhash64({', '.join(rows.columns)}) & {2**30 - 1})").collect()
    return list(row)


def streams_passes(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """The same by Kafka Streams, in a JVM of its own."""
    passes = parameters["warm_up_passes"] + parameters["rounds"]
    with tempfile.TemporaryDirectory(prefix="moldau-bench-streams-") as folder:
        command = kafka_streams.command(
            parameters["bootstrap"],
            parameters["work"],
            parameters["clicks"],
            parameters["users"],
            parameters["output"],
            parameters["output"],
            folder,
            parameters["threads"],
            parameters["records"],
            passes,
            STREAMS_DELAY_S,
        )
        ready()
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as complaints:
            lines = _streams_lines(command, complaints, PASS_TIMEOUT_S * passes)
            complaints.seek(0)
            complaint = complaints.read().strip()
        seconds = time.perf_counter() - started
    if len(lines) != passes:
        raise RuntimeError(f"Kafka Streams ended after {len(lines)} of {passes} passes: {complaint[-2000:]}")
    measured = [json.loads(line) for line in lines][parameters["warm_up_passes"] :]
    return {"seconds": seconds, "passes": measured, "output": f"{parameters['output']}-{passes - 1}"}


def _streams_lines(command: list[str], complaints: IO[str], timeout_s: float) -> list[str]:
    """What it prints after each pass."""
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, text=True) as process:
        timer = threading.Timer(timeout_s, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    lines.append(line)
                    say(f"pass {len(lines)}, Kafka Streams: {line.strip()}")
        finally:
            timer.cancel()
            process.kill()
    return lines
