"""A streaming query that copies the source to the target exactly once; a driver of its own, so that it can be killed.

    python -m soak.spark_copier <bootstrap> <checkpoint> [foreachBatch]

After an error it ends; whoever runs it starts it again.
"""

from __future__ import annotations

import sys

import moldau.spark
from soak.copier import SOURCE, TARGET

BATCH_RECORDS = 1000
"""Small, so that a kill finds the query in every phase of a batch."""


def main(bootstrap: str, checkpoint: str, into: str = "stream") -> None:
    spark = moldau.spark.session(app_name="soak", master="local[2]")
    source = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_RECORDS)
        .load()
    )
    options = {"kafka.bootstrap.servers": bootstrap, "topic": TARGET, "kafka.transaction.timeout.ms": 10_000}
    stream = source.selectExpr("key", "value").writeStream.option("checkpointLocation", checkpoint)
    if into == "foreachBatch":
        stream = stream.foreachBatch(moldau.spark.batch_sink(**options))
    else:
        stream = moldau.spark.apply_options(stream, options)
    stream.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
