"""Committed offsets: how many a second from four pipelining clients, and how long one takes alone."""

from __future__ import annotations

from bench.drive import Drive
from bench.metrics import Metric, Sample
from bench.scenarios.groups import new_group
from bench.scenarios.scenario import Bench, Phase, Scenario
from bench.servers.server import ServerProcess
from bench.stats import percentile
from bench.topics import temporary_topic

CLIENTS = 4
# What clients that commit asynchronously after every batch have in flight.
IN_FLIGHT = 5


class PipelinedCommits(Scenario):
    """Four processes on plain sockets, each with a group of its own without members, five commits in flight."""

    name = "commits"
    phase = Phase.LOAD
    rate = Metric("commits_per_second", "offset commits, 4 pipelining clients", "commits/s", "higher")
    metrics = (rate,)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        drive = pipeline_commits(bench, server)
        total = sum(result["commits"] for result in drive.results)
        return [Sample(self.rate, total / drive.seconds)]


def pipeline_commits(bench: Bench, server: ServerProcess) -> Drive:
    with temporary_topic(server, CLIENTS) as topic:
        job = {"topic": topic, "in_flight": IN_FLIGHT, "seconds": bench.sizes.commits_seconds}
        jobs = ({**job, "group": new_group(), "partition": index} for index in range(CLIENTS))
        return bench.drivers.run(server, "pipeline_commits", *jobs)


class SynchronousCommit(Scenario):
    """librdkafka: one `commit(asynchronous=False)`, then the next."""

    name = "commit_latency"
    phase = Phase.LOAD
    p50 = Metric("sync_commit_p50", "synchronous commit, p50", "ms", "lower")
    p99 = Metric("sync_commit_p99", "synchronous commit, p99", "ms", "lower")
    metrics = (p50, p99)

    def run(self, bench: Bench, server: ServerProcess) -> list[Sample]:
        latencies_ms = commit_one_by_one(bench, server).result["latencies_ms"]
        return [
            Sample(self.p50, percentile(latencies_ms, 50)),
            Sample(self.p99, percentile(latencies_ms, 99)),
        ]


def commit_one_by_one(bench: Bench, server: ServerProcess) -> Drive:
    with temporary_topic(server) as topic:
        job = {"topic": topic, "group": new_group(), "commits": bench.sizes.one_by_one_commits}
        return bench.drivers.run(server, "commit_one_by_one", job)
