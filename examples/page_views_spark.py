"""Page views counted per page and window, exactly once: `python page_views_spark.py localhost:9092 ./checkpoint`.

It reads JSON records with a `page` field from the topic `page-views` and writes the updated counts to `page-counts`.
Both topics must exist. `pipelines/website_activity.yaml` is the same as a pipeline.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

import moldau.spark


def count_page_views(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    kafka = {"kafka.bootstrap.servers": servers}
    source = {"subscribe": "page-views", "startingOffsets": "earliest"}
    typed = {"value.format": "json", "value.schema": "page STRING"}
    views = spark.readStream.format("moldau").options(**kafka, **source, **typed).load()
    windows = views.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "5 seconds"), "value.page")
    result = F.struct(F.unix_timestamp("window.start").alias("window"), "page", "count")
    counts = windows.count().select(F.col("page").alias("key"), F.to_json(result).alias("value"))

    # Spark does not support update mode for Python sinks; foreachBatch does.
    sink = moldau.spark.batch_sink(topic="page-counts", **kafka)
    updates = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    return updates.foreachBatch(sink).start()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: python {sys.argv[0]} HOST:PORT CHECKPOINT-FOLDER")
    count_page_views(moldau.spark.session(), *sys.argv[1:]).awaitTermination()
