"""Fails on records that a topic does not take, so that a search for bad records finds them.

The size is computed in Spark, so it may be off by a few bytes for JSON. Values of other formats have another size than
their columns, and compressed records another than the topic sees: these are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from moldau.client.admin import Resource, describe_configs
from moldau.errors import KafkaError
from moldau.spark.connections import ask_patiently
from moldau.spark.sink.write_options import WriteOptions
from moldau.wire.compression import Codec
from moldau.wire.constants import ResourceType

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OVERHEAD_BYTES = 67  # of a batch with one record, at least
_LIMIT = "max.message.bytes"


def refuse_large(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Rows as records, as `format("moldau")` gets them with these options."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import StructType

    is_struct = isinstance(rows.schema["value"].dataType, StructType)
    if is_struct and options.get("value.format", "json") != "json":
        return rows
    value = F.to_json("value", {"ignoreNullFields": "false"}) if is_struct else F.col("value")
    parts = [value, *(F.col(name) for name in rows.columns if name == "key")]
    size = sum((F.coalesce(F.octet_length(part), F.lit(0)) for part in parts), F.lit(_OVERHEAD_BYTES))
    name, limit = _limit(WriteOptions.parse(options))
    text = F.format_string(f"a record of %d bytes is larger than {name}={limit}", size)
    return rows.where(F.when(size > limit, F.raise_error(text).cast("boolean")).otherwise(F.lit(True)))


def _limit(options: WriteOptions) -> tuple[str, int]:
    """The smaller of the producer's and the topic's, with its name."""
    limits = {"kafka.max.request.size": options.request_bytes_max}
    if options.codec is Codec.NONE and options.topic is not None:
        topic = Resource(ResourceType.TOPIC, options.topic)
        with suppress(KafkaError):  # it does not exist yet, or this user may not see its configuration
            entries = ask_patiently(options.client, lambda cluster: describe_configs(cluster, [topic]))[topic]
            limits |= {f"{_LIMIT} of the topic": int(one.value) for one in entries if one.name == _LIMIT and one.value}
    return min(limits.items(), key=lambda limit: limit[1])
