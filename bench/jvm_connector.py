"""Spark's own Kafka connector as the yardstick of our source: its jars by Maven, and its settings.

The connector follows Spark's version; of the token provider Maven has an older one only, which works. What they
depend on is in Spark already, so each comes without its own dependencies.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.servers.maven import Jars

VERSION = "4.2.0"
ARTIFACTS = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", VERSION),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.2"),
    ("org.apache.commons", "commons-pool2", "2.12.1"),
)

# Found by trying larger polls, fetches, buffers, batches, a linger time and more tasks than partitions: what makes
# the connector fastest on this work while it still checks CRCs and waits for acks=all.
BEST_READ: Mapping[str, str] = {"kafka.max.poll.records": "20000", "kafka.max.partition.fetch.bytes": "8388608"}
BEST_WRITE: Mapping[str, str] = {"kafka.batch.size": "1000000"}


def pom() -> str:
    exclusions = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        f"{exclusions}</dependency>\n"
        for group, artifact, version in ARTIFACTS
    )
    return f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>moldau.bench</groupId><artifactId>spark-kafka</artifactId><version>1</version>
<dependencies>
{dependencies}</dependencies>
</project>
"""


JARS = Jars(f"Spark's Kafka connector {VERSION}", f"spark-kafka-{VERSION}", pom())


def jar_paths() -> list[str]:
    return sorted(str(path) for path in JARS.ensure().glob("*.jar"))
