"""A one-shot Spark job as a user writes it: `python -m bench.spark_once PARAMETERS`, JSON.

How many records of the topic begin with which byte, by a batch query or by one micro-batch; printed, then the end.
Run in a process of its own, because from its start to its first line is what is measured (`jobs/spark_first.py`).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def session(kind: str, jars: str) -> Any:
    if kind == "moldau":
        import moldau.spark

        return moldau.spark.session(master="local[2]", short_job=True)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.sql.shuffle.partitions", "2").config("spark.jars", jars).getOrCreate()


def main(job: dict[str, str]) -> None:
    spark = session(job["session"], job["jars"])
    options = {"kafka.bootstrap.servers": job["bootstrap"], "subscribe": job["topic"], "startingOffsets": "earliest"}
    reader = spark.read if job["work"] == "batch" else spark.readStream
    rows = reader.format(job["format"]).options(**options).load().selectExpr("substring(value, 8, 1) as digit")
    counts = rows.groupBy("digit").count()
    if job["work"] == "batch":
        result = counts.collect()
    else:
        query = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
        query.trigger(availableNow=True).start().awaitTermination()
        result = spark.table("counts").collect()
    print(sum(row["count"] for row in result), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
