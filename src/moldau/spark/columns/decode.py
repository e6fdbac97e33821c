"""Record batches → Arrow columns."""

from __future__ import annotations

import pyarrow as pa

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])

# The columns of Spark's own Kafka source, each as Spark's `to_arrow_schema` spells its type.
RAW_FIELDS: dict[str, pa.Field] = {
    field.name: field
    for field in (
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    )
}
