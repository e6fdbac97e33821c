"""Records that a sink connector cannot decode: they fail the query, are skipped, or become dead letters.

Converters say in the column `ERROR` why a record cannot be decoded. Dead letters of such records are written at least
once; those of transforms are found by the engine, as for every pipeline.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.pipelines.doors.connect.plugins import Frames
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.references import resolve
from moldau.spark.options import DEAD_LETTER_BYTES_MAX, HEADER_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

logger = logging.getLogger(__name__)

ERROR = "__error"  # why a record cannot be decoded; null if it can
_RAW = "__raw_"
_LOGGED_MAX = 5  # records of a micro-batch


def with_error(frame: DataFrame, column: str, is_bad: Column, reason: str) -> DataFrame:
    """Say of the records for which `is_bad` holds why they cannot be decoded. The first reason stays."""
    from pyspark.sql import functions as F  # noqa: N812

    why = F.when(is_bad, F.lit(f"{column}: {reason}"))
    return frame.withColumn(ERROR, F.coalesce(F.col(ERROR), why) if ERROR in frame.columns else why)


@dataclass(frozen=True)
class Tolerance:
    connector: str
    is_tolerant: bool = False
    is_logged: bool = False
    topic: str | None = None  # of dead letters
    kafka: Mapping[str, Given] = field(default_factory=dict)  # references unresolved
    folder: Path = field(default_factory=Path)

    def decoding(self, converters: Mapping[str, Any]) -> Frames:
        """The batch step that decodes these columns, each with its converter."""
        kept: list[DataFrame] = []

        def decode(frame: DataFrame) -> DataFrame:
            from pyspark.sql import functions as F  # noqa: N812

            # Schemas and bad records are looked for before the batch is written: it is read, and counted, once.
            for before in kept:
                before.unpersist()
            kept[:] = [frame.persist()]
            frame = frame.withColumns({f"{_RAW}{name}": F.col(name) for name in converters})
            for name, converter in converters.items():
                frame = converter.decode(frame, name)
            extra = [name for name in frame.columns if name == ERROR or name.startswith(_RAW)]
            return self._judged(frame).drop(*extra)

        return decode

    def _judged(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        if ERROR not in frame.columns:
            return frame
        if not self.is_tolerant:
            place = F.concat(F.col("topic"), F.lit("-"), F.col("partition"), F.lit("@"), F.col("offset"))
            message = F.concat(F.lit("cannot decode record "), place, F.lit(", "), F.col(ERROR))
            # In a filter, which is computed whatever columns are used later.
            return frame.where(F.when(F.col(ERROR).isNull(), True).otherwise(F.raise_error(message).cast("boolean")))
        bad = frame.where(F.col(ERROR).isNotNull())
        if self.is_logged:
            for row in bad.select("topic", "partition", "offset", ERROR).limit(_LOGGED_MAX).collect():
                logger.warning("connector %s: cannot decode record %s-%s@%s, %s", self.connector, *row)
        if self.topic is not None and not bad.isEmpty():
            self._letters(bad).write.format("moldau").options(**self._writing()).mode("append").save()
        return frame.where(F.col(ERROR).isNull())

    def _writing(self) -> dict[str, str]:
        kafka = {name: str(given.value) for name, given in resolve(self.kafka, self.folder).items()}
        size = {"kafka.max.request.size": str(DEAD_LETTER_BYTES_MAX)}
        return {**size, **kafka, "topic": str(self.topic), "processing.guarantee": "at_least_once"}

    def _letters(self, bad: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        stage = F.when(F.col(ERROR).startswith("key:"), "KEY_CONVERTER").otherwise("VALUE_CONVERTER")
        facts = {
            **{name: F.col(name).cast("string") for name in ("topic", "partition", "offset")},
            "connector.name": F.lit(self.connector),
            "task.id": F.lit("0"),
            "stage": stage,
            "exception.class.name": F.lit("org.apache.kafka.connect.errors.DataException"),
            "exception.message": F.col(ERROR),
        }
        texts = {HEADER_PREFIX + name: text for name, text in facts.items()} | {
            "moldau.pipeline": F.lit(self.connector)
        }
        added = F.array(
            *(F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in texts.items())
        )
        kind = "array<struct<key: string, value: binary>>"
        own = F.coalesce(F.col("headers"), F.array().cast(kind))
        return bad.select(
            F.col(f"{_RAW}key").alias("key"),
            F.col(f"{_RAW}value").alias("value"),
            "timestamp",
            F.concat(own, added.cast(kind)).alias("headers"),
        )
