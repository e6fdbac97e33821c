"""Three Moldau brokers on one machine, each started as a user starts one; they share a folder with their metadata."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.metrics import MOLDAU
from bench.servers.cluster import NODES, SHARED_PROPERTIES, ServerCluster, quiet_ports
from bench.servers.moldau_server import Moldau
from bench.servers.server import write_properties


class MoldauNode(Moldau):
    def __init__(self, node_id: int, port: int, directory: Path, cores: Sequence[int] | None) -> None:
        super().__init__(directory / f"node-{node_id}", cores=cores, port=port)
        self.title = f"Moldau's node {node_id}"
        self._node_id = node_id
        self._metadata_directory = directory / "metadata"

    def prepare(self) -> None:
        write_properties(
            self._properties_path,
            {
                "node.id": self._node_id,
                "listeners": f"PLAINTEXT://{self.bootstrap}",
                "log.dirs": self.data_directory,
                "moldau.metadata.dir": self._metadata_directory,
                # Apache Kafka's defaults are those of a cluster, Moldau's those of one broker.
                "offsets.topic.replication.factor": NODES,
                "transaction.state.log.replication.factor": NODES,
                "transaction.state.log.min.isr": 2,
                **SHARED_PROPERTIES,
                **self.extra,
            },
        )


class MoldauCluster(ServerCluster):
    name = MOLDAU
    title = "Moldau ×3"

    def make_nodes(self, directory: Path, cores: Sequence[int] | None) -> Sequence[MoldauNode]:
        return [MoldauNode(number, port, directory, cores) for number, port in enumerate(quiet_ports(NODES), start=1)]
