"""The options that every source, every sink and the settings of a pipeline have, whichever connector is used."""

from __future__ import annotations

from moldau.pipelines.model.kinds import BOOLEAN, DURATION, MAPPING, TEXT, Kind, duration_ms
from moldau.pipelines.model.options import Option, OptionTable
from moldau.pipelines.model.watermark import Watermark

AVAILABLE_NOW = "available now"  # the trigger that processes what is there, then ends
DEAD_LETTERS = "dead letters"  # the setting with their topic


def _trigger(value: object) -> str | int:
    """Milliseconds, or the words "available now"."""
    if value == AVAILABLE_NOW:
        return AVAILABLE_NOW
    try:
        return duration_ms(value)
    except ValueError as error:
        raise ValueError(f'expected "{AVAILABLE_NOW}" or a duration, such as "1 second"') from error


TRIGGER = Kind("duration or `available now`", _trigger, {"type": "string"})
WATERMARK = Kind(
    "column and duration",
    Watermark.parse,
    {
        "type": ["string", "object"],
        "required": ["column"],
        "additionalProperties": False,
        "properties": {name: {"type": "string"} for name in ("column", "delay", "idle")},
    },
)

SOURCE_OPTIONS = OptionTable.of(
    Option(
        "schema", "Columns and types, as in Spark: `page STRING, at TIMESTAMP`.", example="page STRING, at TIMESTAMP"
    ),
    Option(
        "watermark",
        "Event-time column and how late rows may be: `at 10 minutes`. Windows and stateful steps need it. "
        "`{column: at, delay: 10 minutes, idle: 1 minute}` says also after how long without rows event time moves on "
        "with the clock, so that windows end: 30 seconds by default, or `never`.",
        WATERMARK,
        example="at 10 minutes",
    ),
    Option(
        "static",
        "Read as a table instead of as a stream: all of it, again in each micro-batch. A stream can be joined with it. "
        "Of a topic, it is the last value of each key; of a directory, the files that are there when the query starts.",
        BOOLEAN,
    ),
)

SINK_OPTIONS = OptionTable.of()

SETTINGS = OptionTable.of(
    Option(
        "trigger",
        "How often a micro-batch starts, or `available now` to process what is there and stop. "
        "By default the next one starts when there is data.",
        TRIGGER,
        example="1 second",
    ),
    Option(
        "checkpoint", "Folder or URL for checkpoints; each query has a folder of its own in it.", default="checkpoints"
    ),
    Option(DEAD_LETTERS, "Topic for records that cannot be processed. Without it, such a record stops its query."),
    Option("master", "Spark's master: `local[*]`, `spark://…`, `yarn`, `k8s://…`.", default="local[*]"),
    Option("spark", "Spark's own settings, passed through.", MAPPING, example="{spark.sql.shuffle.partitions: 4}"),
    Option("restart delay max", "Longest pause before a failed query is restarted.", DURATION, default=60_000),
    Option(
        "kafka.*",
        "Client properties for all topics, with Kafka's names after `kafka.`.",
        TEXT,
        example="localhost:9092",
    ),
)
