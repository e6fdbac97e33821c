"""The windowed count or the join by hand, as a program that runs until it is ended: `python -m bench.pipeline_by_hand
PARAMETERS`, JSON. A plain session, as Spark's documentation has it, but for the number of shuffle partitions."""

from __future__ import annotations

import json
import os
import sys

from bench.pipeline_work import Topics, by_hand


def main(work: str, topics: list[str], jars: str, checkpoint: str) -> None:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[*]").config("spark.ui.enabled", "false").config("spark.jars", jars)
    spark = builder.config("spark.sql.shuffle.partitions", os.cpu_count() or 1).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    query = by_hand(spark, work, Topics(*topics)).option("checkpointLocation", checkpoint).start()
    query.awaitTermination()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
