"""The two jobs of the pipeline scenarios, each written three times: as a pipeline file, by hand with Spark's Kafka
connector (here), and for Kafka Streams (`kafka_streams/Streams.java`).

`count`: clicks per minute of event time and page, each window written once, when it is over.
`join`: each click with the country of its user, from a topic of users.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WORKS = ("count", "join")
CLICK = "page STRING, user STRING, ms INT, at TIMESTAMP"
USER = "user STRING, country STRING"
DELAY_S = 600
# Kafka Streams reads each partition of a backlog at its own pace: with the same delay it would drop most of it as late.
# So its windows stay open; that every click was counted is checked by their number.
STREAMS_DELAY_S = 86_400
SQL = {
    "count": "SELECT window.start AS minute, page, count(*) AS views FROM clicks GROUP BY window(at, '1 minute'), page",
    "join": "SELECT /*+ BROADCAST(users) */ clicks.*, country FROM clicks JOIN users USING (user)",
    "move": "SELECT * FROM clicks",
}


class Topics(NamedTuple):
    bootstrap: str
    clicks: str
    users: str
    output: str


def write_pipeline(
    folder: Path, name: str, work: str, topics: Topics, settings: Mapping[str, str], **source: object
) -> Path:
    """The file of a pipeline. `move` only copies the clicks."""
    if work == "count":
        source = {"watermark": f"at {DELAY_S} seconds", **source}
    options = "".join(f"\n    {option}: {value}" for option, value in source.items())
    given = "".join(f"\n  {setting}: {value}" for setting, value in settings.items())
    path = folder / f"{name}.yaml"
    path.write_text(f"""\
sources:
  clicks:
    connector: topic
    topic: {topics.clicks}
    format: json
    schema: {CLICK}{options}
  users:
    connector: topic
    topic: {topics.users}
    format: json
    schema: {USER}
    static: true
steps:
  result:
    sql: {SQL[work]}
sinks:
  output:
    connector: topic
    topic: {topics.output}
    key: {"page" if work == "count" else "user"}
settings:
  kafka.bootstrap.servers: {topics.bootstrap}{given}
""")
    return path


def by_hand(spark: SparkSession, work: str, topics: Topics, **options: str | int) -> DataStreamWriter:
    """The same job with Spark's Kafka connector, which writes at least once: it has nothing better."""
    from pyspark.sql import functions as F  # noqa: N812

    where = {"kafka.bootstrap.servers": topics.bootstrap}
    stream = spark.readStream.format("kafka").options(**where, subscribe=topics.clicks, startingOffsets="earliest")
    clicks = _typed(stream.options(**options).load(), CLICK)
    users = _typed(spark.read.format("kafka").options(**where, subscribe=topics.users).load(), USER)
    clicks = clicks.withWatermark("at", f"{DELAY_S} seconds") if work == "count" else clicks
    clicks.createOrReplaceTempView("clicks")
    users.createOrReplaceTempView("users")
    rows = spark.sql(SQL[work])
    key = "page" if work == "count" else "user"
    records = rows.select(F.col(key).alias("key"), F.to_json(F.struct("*")).alias("value"))
    return records.writeStream.format("kafka").options(**where, topic=topics.output)


def _typed(frame: DataFrame, schema: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    return frame.select(F.from_json(F.col("value").cast("string"), schema).alias("value")).select("value.*")
