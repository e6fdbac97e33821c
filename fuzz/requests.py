"""Valid requests of every API and version, made from the schemas themselves.

A field's Kafka type says what may stand there, its name says what makes sense there. An API that the broker
learns later is covered without a line here.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import random
import struct
import time
import typing
import uuid
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from crc32c import crc32c

from moldau.wire import messages  # first: it keeps kio from importing hypothesis, which takes seconds
from moldau.wire.batch import encode_batch
from moldau.wire.compression import Codec

_CRC_POS = 17
_CRC_FROM = 21
_TOPIC_FIELDS = frozenset({"name", "topic", "topic_name"})
_BITS = {"int8": 8, "uint16": 16, "int16": 16, "int32": 32, "int64": 64}
_WILD_TEXTS = (
    "",
    ".",
    "..",
    "a/b",
    "../../etc/passwd",
    "nul\0",
    "ž" * 200,
    "x" * 5000,
    "-1",
    "__consumer_offsets",
)
_WILD_CHANCE = 0.15
_CONFIG_NAMES = ("retention.ms", "segment.bytes", "compression.type", "no.such.config")
_DELETES_TOPICS = 20


class Target(typing.NamedTuple):
    """What exists on the broker; what a request may delete is apart, so that the rest stays a target."""

    topics: Sequence[tuple[str, uuid.UUID]]
    doomed_topic: str


@cache
def _request_class(api_key: int, version: int) -> Any:
    return importlib.import_module("kio.index").load_request_schema(api_key, version)


@cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


class RequestMaker:
    """Tame requests make sense; in wild ones a field may hold anything that its type allows."""

    def __init__(self, target: Target, rng: random.Random, *, wild: bool = False) -> None:
        self._target = target
        self._rng = rng
        self._wild = wild
        self._topic, self._topic_id = target.topics[0]
        self._deleting = False

    def frame(self, api_key: int, version: int) -> bytes:
        """A whole frame, size first."""
        client_id = self._rng.choice((None, "", "fuzz", "ž" * 40))
        return messages.encode_request(self._rng.randrange(1000), client_id, self.request(api_key, version))

    def request(self, api_key: int, version: int) -> Any:
        self._topic, self._topic_id = self._rng.choice(self._target.topics)
        self._deleting = api_key == _DELETES_TOPICS
        return self._entity(_request_class(api_key, version))

    def _entity(self, cls: type) -> Any:
        hints = _hints(cls)
        return cls(**{field.name: self._field(field, hints[field.name]) for field in dataclasses.fields(cls)})

    def _field(self, field: dataclasses.Field[Any], hint: Any) -> Any:
        rng = self._rng
        arguments = typing.get_args(hint)
        if type(None) in arguments and rng.random() < 0.2:
            return None
        if "tag" in field.metadata and field.default is not dataclasses.MISSING and rng.random() < 0.7:
            return field.default
        hint = next((one for one in arguments if one is not type(None)), hint) if _is_optional(hint) else hint
        if typing.get_origin(hint) is tuple:
            element = typing.get_args(hint)[0]
            return tuple(self._value(field, element) for _ in range(rng.choice((0, 1, 1, 1, 2))))
        return self._value(field, hint)

    def _value(self, field: dataclasses.Field[Any], hint: Any) -> Any:
        if dataclasses.is_dataclass(hint):
            return self._entity(typing.cast(type, hint))
        rng = self._rng
        kind = field.metadata["kafka_type"]
        if kind in _BITS:
            return self._number(field.name, kind)
        makers: dict[str, Callable[[], Any]] = {
            "string": lambda: self._text(field.name),
            "records": lambda: batch(rng),
            "bytes": lambda: rng.randbytes(rng.randrange(20)),
            "uuid": lambda: self._topic_id if rng.random() < 0.8 else uuid.UUID(int=rng.getrandbits(128)),
            # Most changes are only tried out: a fuzzer that fills the disk with topics finds nothing new.
            "bool": lambda: rng.random() < (0.95 if field.name == "validate_only" else 0.5),
            "timedelta_i32": lambda: datetime.timedelta(milliseconds=self._duration_ms()),
            "timedelta_i64": lambda: datetime.timedelta(milliseconds=self._duration_ms()),
            "datetime_i64": lambda: datetime.datetime.now(datetime.UTC),
            "float64": rng.random,
        }
        return makers[kind]()

    def _is_wild(self) -> bool:
        return self._wild and self._rng.random() < _WILD_CHANCE

    def _duration_ms(self) -> int:
        if self._is_wild():
            return self._rng.choice((-(2**31), -1, 0, 2**31 - 1))
        return self._rng.randrange(20)

    def _text(self, name: str) -> str:
        if self._is_wild():
            return self._rng.choice(_WILD_TEXTS)
        if name in _TOPIC_FIELDS or name == "topic_names":
            return self._target.doomed_topic if self._deleting else self._topic
        if name == "resource_name":
            return self._rng.choice((self._topic, "1", ""))
        if "config" in name:
            return self._rng.choice(_CONFIG_NAMES)
        return self._rng.choice(("", "fuzz", "é", "1000"))

    def _number(self, name: str, kind: str) -> int:
        if self._is_wild():
            return self._wild_number(kind)
        if name == "acks":
            return self._rng.choice((-1, 0, 1))
        if "timestamp" in name:
            return self._rng.choice((-1, -2, -3, 0, time.time_ns() // 1_000_000))
        if "max_bytes" in name:
            return self._rng.choice((0, 100, 1 << 20))
        if name == "resource_type":
            return self._rng.choice((2, 2, 4))
        if name == "num_partitions":
            return self._rng.choice((-1, 1, 2))
        return self._rng.randint(0 if kind == "uint16" else -1, 3)

    def _wild_number(self, kind: str) -> int:
        bits = _BITS[kind]
        if kind == "uint16":
            return self._rng.choice((0, 2**16 - 1))
        value = self._rng.getrandbits(self._rng.randrange(1, bits))
        return self._rng.choice((-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, -1, -2, value, -value))


def batch(rng: random.Random) -> bytes:
    """A record batch; one in three is damaged inside with its CRC made to fit, as an evil producer would."""
    codec = rng.choice(list(Codec))
    now_ms = time.time_ns() // 1_000_000
    records = [
        (rng.choice((None, b"key")), rng.choice((None, b"", b"value" * 20)), now_ms, ())
        for _ in range(rng.randint(1, 4))
    ]
    producer = (rng.randrange(5), 0, 0) if rng.random() < 0.3 else (-1, -1, -1)
    data = bytearray(
        encode_batch(
            records,
            codec=codec,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=producer[2],
        )
    )
    if rng.random() < 0.33:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(_CRC_FROM, len(data))] = rng.randrange(256)
        struct.pack_into(">I", data, _CRC_POS, crc32c(data[_CRC_FROM:]))
    return bytes(data)


def _is_optional(hint: Any) -> bool:
    return type(None) in typing.get_args(hint)
