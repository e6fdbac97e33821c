"""Apache Kafka as the yardstick: its jars by Maven, one KRaft node with 1 GB of heap.

The flags of the JVM are those of Kafka's own `kafka-server-start.sh` and `kafka-run-class.sh`, the
configuration is Kafka's default one, so that the yardstick is what a user of Kafka would run.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.metrics import KAFKA
from bench.servers.maven import Jars
from bench.servers.server import HOST, ServerError, ServerProcess, free_port, write_properties

VERSION = "4.3.1"
CLUSTER_ID = "bW9sZGF1LWJlbmNoLTAwMA"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>moldau.bench</groupId>
  <artifactId>apache-kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version>
    </dependency>
    <!-- Without a binding a broker that fails to start would fail silently. -->
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""

JARS = Jars(f"Apache Kafka {VERSION}", f"kafka-{VERSION}", POM)

HEAP_FLAGS = ("-Xms1g", "-Xmx1g")
JVM_FLAGS = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    # Errors only: neither broker pays for a log that nobody reads.
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


class ApacheKafka(ServerProcess):
    name = KAFKA
    title = "Apache Kafka"

    def __init__(self, directory: Path, *, cores: Sequence[int] | None = None, port: int | None = None) -> None:
        super().__init__(directory, cores=cores, port=port)
        self._properties_path = directory / "server.properties"

    @property
    def version(self) -> str:
        return VERSION

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        return ["java", *HEAP_FLAGS, *JVM_FLAGS, "-cp", f"{JARS.ensure()}/*", main_class, *arguments]

    def properties(self) -> dict[str, object]:
        controller_port = free_port()
        return {
            **self.role_properties(1, f"1@{HOST}:{controller_port}", controller_port),
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
        }

    def role_properties(self, node_id: int, voters: str, controller_port: int) -> dict[str, object]:
        """Of a node that is broker and controller."""
        return {
            "process.roles": "broker,controller",
            "node.id": node_id,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data_directory,
            # Waits by which groups get fewer rebalances: 3 s and 1 s by default. Moldau has none, and what
            # is compared is what the brokers do, not how long they wait before.
            "group.initial.rebalance.delay.ms": 0,
            "group.consumer.assignment.interval.ms": 0,
        }

    def prepare(self) -> None:
        if self._properties_path.exists():
            return
        write_properties(self._properties_path, {**self.properties(), **self.extra})
        arguments = ("format", "-t", CLUSTER_ID, "-c", str(self._properties_path))
        command = self._java("kafka.tools.StorageTool", *arguments)
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise ServerError(f"Kafka's storage could not be formatted:\n{answer.stdout}{answer.stderr}")

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties_path))
