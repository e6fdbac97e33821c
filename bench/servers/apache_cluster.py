"""Three KRaft nodes of Apache Kafka, each broker and controller, with the heap and the flags of its start script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.metrics import KAFKA
from bench.servers.apache import ApacheKafka
from bench.servers.cluster import NODES, SHARED_PROPERTIES, ServerCluster, quiet_ports
from bench.servers.server import HOST


class KafkaNode(ApacheKafka):
    def __init__(
        self, node_id: int, port: int, controller_ports: Sequence[int], directory: Path, cores: Sequence[int] | None
    ) -> None:
        super().__init__(directory / f"node-{node_id}", cores=cores, port=port)
        self.title = f"Apache Kafka's node {node_id}"
        self._node_id = node_id
        self._controller_ports = controller_ports

    def properties(self) -> dict[str, object]:
        voters = (f"{number}@{HOST}:{port}" for number, port in enumerate(self._controller_ports, start=1))
        return {
            **self.role_properties(self._node_id, ",".join(voters), self._controller_ports[self._node_id - 1]),
            **SHARED_PROPERTIES,
        }


class KafkaCluster(ServerCluster):
    name = KAFKA
    title = "Apache Kafka ×3"

    def make_nodes(self, directory: Path, cores: Sequence[int] | None) -> Sequence[KafkaNode]:
        ports = quiet_ports(2 * NODES)
        brokers, controllers = ports[:NODES], ports[NODES:]
        return [KafkaNode(number, port, controllers, directory, cores) for number, port in enumerate(brokers, start=1)]
