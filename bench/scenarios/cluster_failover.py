"""How long a cluster takes to be ready, and to take a write again after the leader of its partition was killed."""

from __future__ import annotations

from bench.cluster_topics import controller_of, create_topic, partitions_of
from bench.metrics import Metric, Sample, ratio_at_most
from bench.scenarios.scenario import Bench, ClusterScenario, Phase
from bench.servers.cluster import ServerCluster

RECORD_BYTES = 100
PARTITIONS = 3


class ClusterStart(ClusterScenario):
    """From the spawn of the first process until each of the three brokers knows all three."""

    name = "cluster_start"
    phase = Phase.ALONE
    ready = Metric("cluster_start", "three brokers, start to ready", "s", "lower", ratio_at_most(1.0))
    metrics = (ready,)

    def run(self, bench: Bench, cluster: ServerCluster) -> list[Sample]:
        # Not measured: it writes the directories and, on a fresh checkout, compiles bytecode.
        cluster.start()
        cluster.stop()
        return [Sample(self.ready, cluster.start())]


class ClusterFailover(ClusterScenario):
    """SIGKILL of a leader until the next write to its partition is acknowledged, by a producer that was writing.

    Once where that leader is not the controller, once where it is. The same session timeout and the same backoff of
    retries for both.
    """

    phase = Phase.ALONE
    repeats_itself = True

    def __init__(self, session_timeout_ms: int) -> None:
        self._session_timeout_ms = session_timeout_ms
        seconds = session_timeout_ms // 1000
        self.name = f"cluster_failover_{seconds}s"
        title = f"failover, sessions of {seconds} s: the killed leader"
        self._of = {
            False: Metric(f"failover_{seconds}s_leader", f"{title} …", "s", "lower", ratio_at_most(1.0)),
            True: Metric(
                f"failover_{seconds}s_controller", f"{title} is the controller", "s", "lower", ratio_at_most(1.0)
            ),
        }
        self.metrics = tuple(self._of.values())

    def run(self, bench: Bench, cluster: ServerCluster) -> list[Sample]:
        cluster.extra["broker.session.timeout.ms"] = self._session_timeout_ms
        cluster.start()
        return [
            Sample(metric, self._fail_over(bench, cluster, is_controller))
            for _ in range(bench.repeat)
            for is_controller, metric in self._of.items()
        ]

    def _fail_over(self, bench: Bench, cluster: ServerCluster, is_controller: bool) -> float:
        topic = create_topic(cluster, PARTITIONS)
        with cluster.client() as client:
            controller = controller_of(client)
            partition, leader = next(
                (each.partition, each.leader)
                for each in partitions_of(client, topic)
                if (each.leader == controller) is is_controller
            )
        node = cluster.node(leader)
        job = {"topic": topic, "partition": partition, "leader_pid": node.pid, "record_bytes": RECORD_BYTES}
        drive = bench.drivers.run(cluster, "fail_over", job)
        cluster.restart_node(node)
        return drive.seconds
