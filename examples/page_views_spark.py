"""Page views counted per page and window, exactly once: `python page_views_spark.py localhost:9092 ./checkpoint`.

Reads the topic `page-views` (JSON with a `page`), writes `page-counts`; `make demo` shows the same job at work.
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

import moldau.spark


def count_page_views(spark: SparkSession, servers: str, checkpoint: str) -> StreamingQuery:
    kafka = {"kafka.bootstrap.servers": servers}
    source = {"subscribe": "page-views", "startingOffsets": "earliest"}
    records = spark.readStream.format("moldau").options(**kafka, **source).load()
    view = F.from_json(F.col("value").cast("string"), "page string").alias("view")
    views = records.select("timestamp", view).select("timestamp", "view.page").withWatermark("timestamp", "1 minute")
    counts = views.groupBy(F.window("timestamp", "5 seconds"), "page").count()
    result = F.struct(F.unix_timestamp("window.start").alias("window"), "page", "count")
    rows = counts.select(F.col("page").alias("key"), F.to_json(result).alias("value"))
    sink = {"topic": "page-counts", "checkpointLocation": checkpoint}
    return rows.writeStream.format("moldau").options(**kafka, **sink).outputMode("update").start()


if __name__ == "__main__":
    count_page_views(moldau.spark.session(), *sys.argv[1:3]).awaitTermination()
