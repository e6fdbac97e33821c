"""Records are printed byte for byte as Kafka's formatters print them."""

from __future__ import annotations

import json

import pytest

from moldau.cli.records.formatters import JsonFormatter, build_formatter
from moldau.errors import ConfigError, RecordFormatError


class Message:
    """confluent-kafka's accessors."""

    def __init__(
        self,
        key: bytes | None = b"k",
        value: bytes | None = b"v",
        headers: list[tuple[str, bytes | None]] | None = None,
        timestamp: tuple[int, int] = (1, 1700000000000),
        epoch: int | None = 4,
    ) -> None:
        self._fields = (key, value, headers, timestamp, epoch)

    def key(self) -> bytes | None:
        return self._fields[0]

    def value(self) -> bytes | None:
        return self._fields[1]

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._fields[2]

    def timestamp(self) -> tuple[int, int]:
        return self._fields[3]

    def leader_epoch(self) -> int | None:
        return self._fields[4]

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 2

    def offset(self) -> int:
        return 7


def _format(message: Message, **props: str) -> bytes:
    return build_formatter("default", {name.replace("_", "."): value for name, value in props.items()})(message)


ALL = {f"print_{what}": "true" for what in ("timestamp", "partition", "offset", "epoch", "headers", "key")}


def test_the_value_alone_by_default() -> None:
    assert _format(Message()) == b"v\n"


def test_every_column_in_kafkas_order() -> None:
    message = Message(headers=[("a", b"1"), ("b", None)])
    assert _format(message, **ALL) == b"CreateTime:1700000000000\tPartition:2\tOffset:7\tEpoch:4\ta:1,b:null\tk\tv\n"


def test_what_a_record_lacks_is_said() -> None:
    message = Message(key=None, value=None, timestamp=(0, -1), epoch=None)
    expected = b"NO_TIMESTAMP\tPartition:2\tOffset:7\tEpoch:NOT_PRESENT\tNO_HEADERS\tnull\tnull\n"
    assert _format(message, **ALL) == expected


def test_separators_and_the_null_literal_are_a_matter_of_taste() -> None:
    message = Message(value=None, headers=[("a", b"1"), ("b", b"2")], timestamp=(2, 5))
    text = _format(
        message, print_timestamp="true", print_headers="true", print_key="true", key_separator=" | ",
        line_separator="\r\n", headers_separator=";", null_literal="-",
    )  # fmt: skip
    assert text == b"LogAppendTime:5 | a:1;b:2 | k | -\r\n"


def test_values_may_be_left_out() -> None:
    assert _format(Message(), print_value="false", print_key="true") == b"k\n"
    assert _format(Message(), print_value="false") == b""


def test_bytes_that_are_no_text_are_printed_as_they_are() -> None:
    assert _format(Message(value=b"\xff\x00")) == b"\xff\x00\n"


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("LongDeserializer", b"\xff" * 8, b"-1"),
        ("org.apache.kafka.common.serialization.IntegerDeserializer", b"\0\0\1\0", b"256"),
        ("ShortDeserializer", b"\0\7", b"7"),
        ("DoubleDeserializer", b"?\xf0\0\0\0\0\0\0", b"1.0"),
        ("BooleanDeserializer", b"\1", b"true"),
        ("StringDeserializer", b"s", b"s"),
        ("UUIDDeserializer", b"00000000-0000-0000-0000-000000000001", b"00000000-0000-0000-0000-000000000001"),
    ],
)
def test_kafkas_deserializers_are_known_by_name(name: str, data: bytes, text: bytes) -> None:
    assert _format(Message(value=data), value_deserializer=name) == text + b"\n"
    assert _format(Message(key=data), print_key="true", print_value="false", key_deserializer=name) == text + b"\n"


def test_a_record_that_does_not_fit_its_deserializer_is_an_error_of_its_own() -> None:
    with pytest.raises(RecordFormatError, match="cannot deserialize"):
        _format(Message(value=b"short"), value_deserializer="LongDeserializer")


def test_unknown_deserializers_and_formatters_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="AvroDeserializer"):
        _format(Message(), value_deserializer="io.confluent.AvroDeserializer")
    with pytest.raises(ConfigError, match="MyMessageFormatter"):
        build_formatter("org.apache.kafka.tools.consumer.MyMessageFormatter", {})


@pytest.mark.parametrize(
    "name", ["default", "DefaultMessageFormatter", "org.apache.kafka.tools.consumer.DefaultMessageFormatter"]
)
def test_formatters_go_by_any_part_of_their_name(name: str) -> None:
    assert build_formatter(name, {})(Message()) == b"v\n"


def test_the_other_two_formatters() -> None:
    assert build_formatter("kafka.tools.NoOpMessageFormatter", {})(Message()) == b""
    logged = build_formatter("kafka.tools.LoggingMessageFormatter", {})(Message(key=None))
    assert logged == b"v\nINFO CreateTime:1700000000000, key:null value:v\n"


def test_json_holds_every_field_and_any_bytes() -> None:
    line = JsonFormatter()(Message(key=b"\xff", headers=[("h", None)]))
    assert json.loads(line) == {
        "topic": "t",
        "partition": 2,
        "offset": 7,
        "timestamp": 1700000000000,
        "timestampType": "CreateTime",
        "keyBase64": "/w==",
        "value": "v",
        "headers": [{"key": "h", "value": None}],
    }
    assert line.endswith(b"\n")
