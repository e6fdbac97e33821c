"""Commits of offsets: many at once on a plain socket, one at a time by librdkafka."""

from __future__ import annotations

import time
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from bench.group_requests import await_coordinator, check_committed, commit
from bench.jobs.job import Parameters, Ready
from bench.raw import CLIENT_ID, RawConnection, Window, pipeline
from moldau.wire import messages


def pipeline_commits(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Commits of one offset each for some seconds, a fixed number of them in flight; the group has no members."""
    group_id: str = parameters["group"]
    request = commit(group_id, "", -1, parameters["topic"], parameters["partition"])
    with RawConnection(parameters["bootstrap"]) as connection:
        await_coordinator(connection, group_id)
        frame = messages.encode_request(1, CLIENT_ID, request)
        window = Window(connection, frame, parameters["in_flight"], check_committed)
        ready()
        answers, seconds = pipeline(window, parameters["seconds"])
    return {"seconds": seconds, "commits": answers}


def commit_one_by_one(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """One commit, wait for its acknowledgement, the next: what a consumer feels that commits every record."""
    consumer = Consumer(
        {
            "bootstrap.servers": parameters["bootstrap"],
            "group.id": parameters["group"],
            "enable.auto.commit": False,
            "socket.nagle.disable": True,
        }
    )

    def commit_sync(offset: int) -> None:
        (done,) = consumer.commit(offsets=[TopicPartition(parameters["topic"], 0, offset)], asynchronous=False)
        if done.error is not None:
            raise RuntimeError(f"the commit was refused: {done.error}")

    # The first one waits for librdkafka to find the coordinator and to connect to it.
    commit_sync(0)
    ready()
    latencies_ms: list[float] = []
    started = time.perf_counter()
    for number in range(parameters["commits"]):
        before = time.perf_counter()
        commit_sync(number + 1)
        latencies_ms.append((time.perf_counter() - before) * 1000)
    seconds = time.perf_counter() - started
    consumer.close()
    return {"seconds": seconds, "latencies_ms": latencies_ms}
