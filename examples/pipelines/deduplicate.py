"""A step of deduplicate.yaml. Its parameter is the name of the view that it reads."""

from pyspark.sql import DataFrame


def first_of_each(payments: DataFrame) -> DataFrame:
    return payments.dropDuplicatesWithinWatermark(["id"])
