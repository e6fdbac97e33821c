"""Topics as DataFrames: Spark reads and writes any Kafka through the data source `moldau`.

    spark = moldau.spark.session()                     # or your own: moldau.spark.register(spark)
    spark.readStream.format("moldau").option("kafka.bootstrap.servers", "…").option("subscribe", "…").load()

`data_source`  the data source as Spark sees it: reads are in `source/`, writes in `sink/`
`source/`     options, plans, readers; `fetching` sends raw Fetch requests from a task and decodes one answer while the
              next is on its way; `query_progress` says where a query is in its topics
`sink/`       options, writers; `producing` is the producer of a task; `exactly_once` has the transactions: tasks write,
              the driver ends them, a replayed batch changes nothing
`columns/`    record batches ⇄ Arrow columns, in bulk: the only code that touches single records
`formats/`    typed keys and values (JSON, Avro, Protobuf, strings)
`startup/`    a local Spark that starts fast, with the right Java and Python

It connects to any Kafka by address and does not depend on the broker's code. Importing this package loads neither
Spark nor Arrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from moldau.spark.jvm_connector import Builder
    from moldau.spark.sink.foreach_batch import BatchSink
    from moldau.spark.source.query_progress import Progress


def session(
    app_name: str = "moldau",
    master: str = "local[*]",
    *,
    ui: bool = False,
    short_job: bool = False,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """The running Spark session, or a new one that starts fast, with `format("moldau")` ready to use.

    Whatever stands in `config` wins over our settings. `short_job` is for a local job of seconds: its first result
    comes sooner, a long read is slower.
    """
    from moldau.spark.startup.spark_session import get_or_create

    return get_or_create(app_name, master, ui=ui, short_job=short_job, config=config)


def register(spark: SparkSession) -> SparkSession:
    """Makes `format("moldau")` known to a session, and lets its batch reads be asked to push filters down.

    Without it Spark finds the data source too, but gives it no filters. On Spark Connect, moldau has to be installed
    where the server is.
    """
    from moldau.spark.data_source import MoldauDataSource

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(MoldauDataSource)
    return spark


def apply_options(builder: Builder, options: Mapping[str, object]) -> Builder:
    """`spark.read`, `spark.readStream`, `frame.write` or `frame.writeStream` with our format and these options.

    With `connector=jvm` among them, Spark's own Kafka connector is used behind the same options, for what takes no data
    source in Python: real-time mode. Its jars have to be there.
    """
    from moldau.spark.jvm_connector import apply_options

    return apply_options(builder, options)


def progress(query: StreamingQuery) -> Progress:
    """Where a streaming query is: rows a second, and offsets and lag of each partition. It prints as a table."""
    from moldau.spark.source.query_progress import progress_of_query

    return progress_of_query(query)


def batch_sink(**options: object) -> BatchSink:
    """For `foreachBatch`: writes each micro-batch to a topic, exactly once, in any output mode."""
    from moldau.spark.sink.foreach_batch import BatchSink

    return BatchSink(options)
