"""Whole programs that run a pipeline, from outside: when the first result is there, and what they take when idle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from bench import kafka_streams
from bench.jobs.job import Parameters, Ready
from bench.metrics import JVM, MOLDAU
from bench.pipeline_work import STREAMS_DELAY_S, Topics, write_pipeline

RESULT_TIMEOUT_S = 180
STOP_TIMEOUT_S = 60
# After the last result: what is loaded once is loaded by then, and Java has collected its garbage of the start.
SETTLE_S = 10


def pipeline_first_result(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """From the start of the process to the first committed record in its output, and the memory of a while later."""
    topics = Topics(*parameters["topics"])
    with tempfile.TemporaryDirectory(prefix="moldau-bench-pipeline-") as folder, _consumer(topics) as consumer:
        command = _command(parameters, topics, Path(folder))
        ready()
        started = time.perf_counter()
        with running(command, Path(folder)) as process:
            _await_record(consumer, process)
            seconds = time.perf_counter() - started
            cpu_s = sum(_cpu_by_process(process.pid).values())
            time.sleep(parameters["settle_s"])
            return {"seconds": seconds, "cpu_s": cpu_s, "memory_mb": _pss_bytes(process.pid) / 1_000_000}


def idle_pipelines(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """So many pipelines in one `moldau pipeline run`, after each has written its first result."""
    with tempfile.TemporaryDirectory(prefix="moldau-bench-idle-") as name:
        folder = Path(name)
        topics = [Topics(*each) for each in parameters["pipelines"]]
        for number, each in enumerate(topics):
            write_pipeline(folder, f"idle-{number}", "move", each, {})
        with contextlib.ExitStack() as stack:
            consumers = [stack.enter_context(_consumer(each)) for each in topics]
            process = stack.enter_context(running(_moldau_run(folder), folder))
            for consumer in consumers:
                _await_record(consumer, process)
            time.sleep(parameters["settle_s"])
            ready()
            before = _cpu_by_process(process.pid)
            started = time.perf_counter()
            time.sleep(parameters["seconds"])
            seconds = time.perf_counter() - started
            after = _cpu_by_process(process.pid)
            spent = sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in after.items())
            return {"seconds": seconds, "cpu_s": spent, "memory_mb": _pss_bytes(process.pid) / 1_000_000}


def _command(parameters: Parameters, topics: Topics, folder: Path) -> list[str]:
    work, contender = parameters["work"], parameters["contender"]
    if contender == MOLDAU:
        return _moldau_run(write_pipeline(folder, "bench", work, topics, {}))
    if contender == JVM:
        job = {
            "work": work,
            "topics": list(topics),
            "jars": parameters["jars"],
            "checkpoint": str(folder / "checkpoint"),
        }
        return [sys.executable, "-m", "bench.pipeline_by_hand", json.dumps(job)]
    name, threads = f"bench-{os.getpid()}", os.cpu_count() or 1
    return kafka_streams.command(
        topics.bootstrap, work, topics.clicks, topics.users, topics.output, name, folder, threads, 0, 0, STREAMS_DELAY_S
    )


def _moldau_run(path: Path) -> list[str]:
    return [str(Path(sys.executable).with_name("moldau")), "pipeline", "run", str(path)]


@contextlib.contextmanager
def running(command: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        except TimeoutError as error:
            said = (folder / "output.txt").read_text(errors="replace").strip()
            raise RuntimeError(f"{error}: {said[-2000:]}") from error
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def _consumer(topics: Topics) -> Iterator[Consumer]:
    """Of all that is committed in the output, which has one partition."""
    consumer = Consumer(
        {"bootstrap.servers": topics.bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 3}
    )
    consumer.assign([TopicPartition(topics.output, 0, OFFSET_BEGINNING)])
    try:
        yield consumer
    finally:
        consumer.close()


def _await_record(consumer: Consumer, process: subprocess.Popen[bytes]) -> None:
    deadline = time.perf_counter() + RESULT_TIMEOUT_S
    while time.perf_counter() < deadline and process.poll() is None:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return
    raise TimeoutError("no result" if process.poll() is None else f"it ended with code {process.returncode}")


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def _cpu_by_process(pid: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process.pid] = times.user + times.system
    return found


def _pss_bytes(pid: int) -> int:
    """What several processes share counts once altogether: Linux alone tells."""
    total = 0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.rss)
    return total
