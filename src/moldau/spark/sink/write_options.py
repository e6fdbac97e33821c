"""The options of a sink, under the names of Spark's Kafka sink and of Kafka's producer.

Moldau adds `processing.guarantee` (Kafka Streams' name; exactly_once by default), `txnAppId` and `txnVersion` (Delta's
names) for batch writes that may be repeated, `transactionalIdPrefix`, `failOnDoubt`, and the options of typed topics
(`moldau.spark.formats`). Properties that only matter to a Java producer have no effect.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from moldau.client.config import ClientConfig
from moldau.errors import ConfigError
from moldau.spark.options import FORMAT_OPTIONS, Options
from moldau.wire.batch_layout import HEADER_SIZE
from moldau.wire.compression import Codec

OPTION_NAMES = (
    "topic",
    "includeHeaders",
    "processing.guarantee",
    "txnAppId",
    "txnVersion",
    "transactionalIdPrefix",
    "failOnDoubt",
    *FORMAT_OPTIONS,
)

_GUARANTEES = ("exactly_once", "exactly_once_v2", "at_least_once")
_CODECS = {codec.name.lower(): codec for codec in Codec}
_ACKS = {"all": -1, "-1": -1, "1": 1}
_FORMAT_INSTEAD = "columns are bytes: use the option value.format or key.format, or functions of the DataFrame"
_REFUSED = {
    "key.serializer": _FORMAT_INSTEAD,
    "value.serializer": _FORMAT_INSTEAD,
    "interceptor.classes": "there is no Java producer to intercept: use functions of the DataFrame",
    "partitioner.class": "keys are hashed as by Kafka's own partitioner: add a column `partition` to choose otherwise",
    "transactional.id": "every task has an id of its own: use the option transactionalIdPrefix for how they begin",
}

# Kafka's 16 KB suit records that come one by one. Here they come by the thousand, and half a megabyte is where larger
# batches stop being faster; what the broker takes (message.max.bytes, 1 MB by default) is twice that.
_BATCH_BYTES_DEFAULT = 512 * 1024
_BATCH_BYTES_MIN = 1024
_REQUEST_BYTES_DEFAULT = 1024 * 1024
# A request is held in memory a few times, and brokers take none over socket.request.max.bytes = 100 MB.
_REQUEST_BYTES_MAX = 100 * 1024 * 1024

# A transaction is open from a task's first row until all tasks are done. Kafka's 60 s would break longer micro-batches.
# Brokers allow up to 15 minutes (transaction.max.timeout.ms). When a query dies and nobody starts it again, readers of
# committed records wait for so long at its open transactions.
_TRANSACTION_TIMEOUT_MS_DEFAULT = 600_000
_DELIVERY_TIMEOUT_MS_DEFAULT = 120_000
# How long a topic may take to appear. Kafka's 60 s is long to wait for being told that there is none.
_MAX_BLOCK_MS_DEFAULT = 10_000


# It also begins the name of a topic, and those have at most 249 characters.
_ID_PREFIX = re.compile(r"[A-Za-z0-9._-]{1,200}")


class WriteOptions(NamedTuple):
    client: ClientConfig
    topic: str | None  # None: each row says
    exactly_once: bool
    acks: int
    codec: Codec
    level: int | None
    batch_bytes: int
    request_bytes_max: int
    delivery_timeout_ms: int
    transaction_timeout_ms: int
    max_block_ms: int
    id_prefix: str
    app_id: str | None
    version: int | None
    fail_on_doubt: bool

    @property
    def records_topic(self) -> str:
        """An empty topic: the sink's records are the metadata of offsets committed there."""
        return f"{self.id_prefix}-sink-records"

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> WriteOptions:
        options = Options(given)
        options.refuse_other_connector()
        options.refuse_misspelt(OPTION_NAMES)
        for name, instead in _REFUSED.items():
            if options.get(f"kafka.{name}") is not None:
                raise ConfigError(f"option kafka.{name} is not supported: {instead}")
        exactly_once = options.choice("processing.guarantee", _GUARANTEES, "exactly_once") != "at_least_once"
        codec = _CODECS[options.choice("kafka.compression.type", _CODECS, "none")]
        request_bytes_max = _number(options, "kafka.max.request.size", _REQUEST_BYTES_DEFAULT, most=_REQUEST_BYTES_MAX)
        batch_bytes = _number(options, "kafka.batch.size", _BATCH_BYTES_DEFAULT)
        app_id, version = _transaction_of_batch(options, exactly_once)
        return cls(
            client=options.client_config("moldau-spark-sink"),
            topic=options.get("topic"),
            exactly_once=exactly_once,
            acks=_acks(options, exactly_once),
            codec=codec,
            level=_level(options, codec),
            batch_bytes=max(_BATCH_BYTES_MIN, min(batch_bytes, request_bytes_max) - HEADER_SIZE),
            request_bytes_max=request_bytes_max,
            delivery_timeout_ms=_number(options, "kafka.delivery.timeout.ms", _DELIVERY_TIMEOUT_MS_DEFAULT),
            transaction_timeout_ms=_number(options, "kafka.transaction.timeout.ms", _TRANSACTION_TIMEOUT_MS_DEFAULT),
            max_block_ms=_number(options, "kafka.max.block.ms", _MAX_BLOCK_MS_DEFAULT),
            id_prefix=_id_prefix(options),
            app_id=app_id,
            version=version,
            fail_on_doubt=options.flag("failOnDoubt", True),
        )


def _id_prefix(options: Options) -> str:
    prefix = options.text("transactionalIdPrefix", "moldau")
    if not _ID_PREFIX.fullmatch(prefix):
        raise ConfigError(
            f"option transactionalIdPrefix={prefix}: expected up to 200 letters, digits, '.', '_' and '-', since the "
            "name of a topic begins with it too"
        )
    return prefix


def _acks(options: Options, exactly_once: bool) -> int:
    acks = _ACKS[options.choice("kafka.acks", _ACKS, "all")]
    if exactly_once and acks != -1:
        raise ConfigError("option kafka.acks: exactly_once needs all; or set processing.guarantee=at_least_once")
    return acks


def _level(options: Options, codec: Codec) -> int | None:
    """Kafka's gzip has -1 for its default, and zstd goes below zero."""
    name = f"kafka.compression.{codec.name.lower()}.level"
    value = options.get(name)
    if value is None:
        return None
    if not value.strip().removeprefix("-").isdigit():
        raise ConfigError(f"option {name}={value}: expected a whole number")
    return int(value)


def _transaction_of_batch(options: Options, exactly_once: bool) -> tuple[str | None, int | None]:
    app_id, version = options.get("txnAppId"), options.number("txnVersion", least=0)
    if (app_id is None) != (version is None):
        raise ConfigError(
            "options txnAppId and txnVersion must be set together: the id of the job, and the number of its batch"
        )
    if app_id is not None and not exactly_once:
        raise ConfigError("options txnAppId and txnVersion need processing.guarantee=exactly_once")
    return app_id, version


def _number(options: Options, name: str, default: int, *, most: int = (1 << 31) - 1) -> int:
    value = options.number(name, default) or default
    if value > most:
        raise ConfigError(f"option {name}={value}: expected {most} or less")
    return value
