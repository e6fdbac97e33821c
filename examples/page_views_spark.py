"""Page views counted per page and window, exactly once: `python page_views_spark.py localhost:9092 ./checkpoint`.

Reads JSON with a `page` from the topic `page-views`, writes the counts to `page-counts`, again and again as they grow;
`make demo` shows the same job at work.
"""

import sys

from pyspark.sql import DataFrame, SparkSession
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

    def write(rows: DataFrame, batch_id: int) -> None:
        # Spark gives no Python sink its update mode; a batch write under the query's name and the batch's number
        # changes nothing when it is repeated.
        query_id = spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        once = {"topic": "page-counts", "txnAppId": query_id, "txnVersion": str(batch_id)}
        rows.write.format("moldau").mode("append").options(**kafka, **once).save()

    updates = counts.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    return updates.foreachBatch(write).start()


if __name__ == "__main__":
    count_page_views(moldau.spark.session(), *sys.argv[1:3]).awaitTermination()
