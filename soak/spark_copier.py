"""A streaming query that copies the source to the target exactly once; a driver of its own, so that it can be killed.

    python -m soak.spark_copier <bootstrap> <checkpoint>

After an error it ends; whoever runs it starts it again.
"""

from __future__ import annotations

import sys

import moldau.spark
from soak.copier import SOURCE, TARGET

BATCH_RECORDS = 1000
"""Small, so that a kill finds the query in every phase of a batch."""


def main(bootstrap: str, checkpoint: str) -> None:
    spark = moldau.spark.session(app_name="soak", master="local[2]")
    source = (
        spark.readStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", BATCH_RECORDS)
        .load()
    )
    query = (
        source.selectExpr("key", "value")
        .writeStream.format("moldau")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", TARGET)
        .option("kafka.transaction.timeout.ms", 10_000)
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
