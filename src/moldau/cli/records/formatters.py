"""How a consumed record is printed: Kafka's message formatters and their properties.

A record here is anything with confluent-kafka's accessors (`key()`, `value()`, `timestamp()`, …).
"""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from moldau.errors import ConfigError, MoldauError, RecordFormatError
from moldau.wire.constants import GROUPS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

_TIMESTAMP_TYPES = {1: "CreateTime", 2: "LogAppendTime"}


class Formatter(Protocol):
    def __call__(self, record: Any) -> bytes: ...


Deserializer = Callable[[bytes], str]

# By the names of Kafka's classes, which end in MessageFormatter: the topic and the kinds of records they print.
_STATE_FORMATTERS: dict[str, tuple[str, tuple[int, ...] | None]] = {
    "offsets": (GROUPS_TOPIC, (0, 1)),
    "groupmetadata": (GROUPS_TOPIC, (2,)),
    "sharegroup": (GROUPS_TOPIC, (10, 11, 12, 13, 14, 15)),
    "transactionlog": (TRANSACTIONS_TOPIC, None),
    "sharegroupstate": (SHARE_STATE_TOPIC, None),
}


def _number(layout: str) -> Deserializer:
    parser = struct.Struct(layout)
    return lambda data: str(parser.unpack(data)[0])


# Named as the last part of the Java classes.
_DESERIALIZERS: dict[str, Deserializer | None] = {
    "StringDeserializer": None,  # None: print the bytes as they are
    "ByteArrayDeserializer": None,
    "BytesDeserializer": None,
    "ByteBufferDeserializer": None,
    "LongDeserializer": _number(">q"),
    "IntegerDeserializer": _number(">i"),
    "ShortDeserializer": _number(">h"),
    "DoubleDeserializer": _number(">d"),
    "FloatDeserializer": _number(">f"),
    "BooleanDeserializer": lambda data: str(struct.unpack(">?", data)[0]).lower(),
    "UUIDDeserializer": lambda data: str(uuid.UUID(data.decode())),
}


def build_formatter(class_name: str, props: Mapping[str, str]) -> Formatter:
    """The formatter of that name: any package, and `default`, `logging` or `noop` alone will do."""
    short = class_name.rpartition(".")[2].rpartition("$")[2].removesuffix("MessageFormatter").lower()
    if short == "noop":
        return lambda record: b""
    if short == "default":
        return DefaultFormatter(props)
    if short == "logging":
        return LoggingFormatter(props)
    if short in _STATE_FORMATTERS:
        return StateFormatter(*_STATE_FORMATTERS[short])
    raise ConfigError(
        f"unknown formatter {class_name}: use one of {', '.join(('default', 'logging', 'noop', *_STATE_FORMATTERS))}"
    )


class DefaultFormatter:
    def __init__(self, props: Mapping[str, str]) -> None:
        self._columns = [
            column
            for name, is_on, column in (
                ("print.timestamp", False, _timestamp),
                ("print.partition", False, _partition),
                ("print.offset", False, _offset),
                ("print.delivery", False, _delivery),
                ("print.epoch", False, _epoch),
                ("print.headers", False, self._headers),
                ("print.key", False, self._key),
                ("print.value", True, self._value),
            )
            if props.get(name, str(is_on)).strip().lower() == "true"
        ]
        self._separator = props.get("key.separator", "\t").encode()
        self._line_end = props.get("line.separator", "\n").encode()
        self._headers_separator = props.get("headers.separator", ",").encode()
        self._null = props.get("null.literal", "null").encode()
        self._key_deserializer = _deserializer(props, "key.deserializer")
        self._value_deserializer = _deserializer(props, "value.deserializer")
        self._headers_deserializer = _deserializer(props, "headers.deserializer")

    def __call__(self, record: Any) -> bytes:
        if not self._columns:
            return b""
        return self._separator.join([column(record) for column in self._columns]) + self._line_end

    def _key(self, record: Any) -> bytes:
        return self._text(record.key(), self._key_deserializer)

    def _value(self, record: Any) -> bytes:
        return self._text(record.value(), self._value_deserializer)

    def _headers(self, record: Any) -> bytes:
        headers = record.headers()
        if not headers:
            return b"NO_HEADERS"
        return self._headers_separator.join(
            name.encode() + b":" + self._text(value, self._headers_deserializer) for name, value in headers
        )

    def _text(self, data: bytes | None, deserializer: Deserializer | None) -> bytes:
        if data is None:
            return self._null
        if deserializer is None:
            return data
        try:
            return deserializer(data).encode()
        except (struct.error, ValueError) as error:
            raise RecordFormatError(f"cannot deserialize {data[:40]!r}: {error}") from error


class LoggingFormatter:
    """The default formatter, and the same record once more for the log, as Kafka words it there."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self._default = DefaultFormatter(props)

    def __call__(self, record: Any) -> bytes:
        kind, timestamp_ms = record.timestamp()
        timestamp = f"{_TIMESTAMP_TYPES[kind]}:{timestamp_ms}, " if kind in _TIMESTAMP_TYPES else ""
        key, value = record.key(), record.value()
        key_text = "key:null " if key is None else f"key:{key.decode(errors='replace')}, "
        value_text = "value:null" if value is None else f"value:{value.decode(errors='replace')}"
        return bytes(self._default(record)) + f"INFO {timestamp}{key_text}{value_text}\n".encode()


class JsonFormatter:
    """One JSON object a line; bytes that are no UTF-8 come as base64 under a name that says so."""

    def __call__(self, record: Any) -> bytes:
        kind, timestamp_ms = record.timestamp()
        fields: dict[str, Any] = {
            "topic": record.topic(),
            "partition": record.partition(),
            "offset": record.offset(),
            "timestamp": timestamp_ms if kind in _TIMESTAMP_TYPES else None,
            "timestampType": _TIMESTAMP_TYPES.get(kind),
            **_json_bytes("key", record.key()),
            **_json_bytes("value", record.value()),
            "headers": [{"key": name, **_json_bytes("value", value)} for name, value in record.headers() or ()],
        }
        return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


class StateFormatter:
    """A record of one of Kafka's own topics, one JSON object a line; other kinds of records are left out."""

    def __init__(self, topic: str, kinds: tuple[int, ...] | None) -> None:
        from moldau.cli.records.state_json import compact, reader

        self._read = reader(topic)
        self._compact = compact
        self._kinds = kinds

    def __call__(self, record: Any) -> bytes:
        if record.key() is None:
            return b""
        try:
            state = self._read(record.key(), record.value())
        except MoldauError as error:
            raise RecordFormatError(f"Could not read record at offset {record.offset()} due to: {error}") from error
        if state is None or (self._kinds is not None and state.kind not in self._kinds):
            return b""
        value = None if state.value is None else {"version": state.version, "data": state.value}
        document = {"key": {"type": state.kind, "data": state.key}, "value": value}
        return self._compact(document).encode() + b"\n"


def _json_bytes(name: str, data: bytes | None) -> dict[str, str | None]:
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}Base64": base64.b64encode(data or b"").decode()}


def _deserializer(props: Mapping[str, str], name: str) -> Deserializer | None:
    class_name = props.get(name, "StringDeserializer").strip()
    short = class_name.rpartition(".")[2]
    if short not in _DESERIALIZERS:
        raise ConfigError(f"{name}={class_name}: expected one of {', '.join(sorted(_DESERIALIZERS))}")
    return _DESERIALIZERS[short]


def _timestamp(record: Any) -> bytes:
    kind, timestamp_ms = record.timestamp()
    return f"{_TIMESTAMP_TYPES[kind]}:{timestamp_ms}".encode() if kind in _TIMESTAMP_TYPES else b"NO_TIMESTAMP"


def _partition(record: Any) -> bytes:
    return b"Partition:%d" % record.partition()


def _offset(record: Any) -> bytes:
    return b"Offset:%d" % record.offset()


def _delivery(record: Any) -> bytes:
    count = record.delivery_count()  # only share groups count deliveries
    return b"Delivery:NOT_PRESENT" if count is None else b"Delivery:%d" % count


def _epoch(record: Any) -> bytes:
    epoch = record.leader_epoch()
    return b"Epoch:NOT_PRESENT" if epoch is None else b"Epoch:%d" % epoch
