"""The largest valid requests of every API: one array of the request, with as many entries as may be sent.

They are made from the schemas. Each array of a request, at whatever depth, gives one request, in which that array is
long and every other has one entry; and each comes in two kinds: with topics and groups that exist, and with others.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import sys
import time
import typing
import uuid
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from moldau.broker.handlers.api_table import API_TABLE
from moldau.wire import messages  # first: it keeps kio from importing hypothesis, which takes seconds
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.batch import encode_batch
from moldau.wire.produce import PARTITIONS_MAX

BYTES_MAX = 8 << 20
_SAMPLE = 64
"""Entries by which the size of one is estimated."""

_TOPIC_FIELDS = frozenset({"name", "topic", "topic_name", "topic_names", "resource_name", "subscribed_topic_names"})
_GROUP_FIELDS = frozenset({"group_id", "groups", "groups_names", "group_ids", "key", "coordinator_keys"})
_PARTITION_FIELDS = frozenset(
    {"index", "partition", "partition_index", "partitions", "partition_indexes", "partition_id"}
)
# What makes the broker do the most: anything else has the number 0, no text, and no duration.
_VALUES: dict[str, Any] = {
    "acks": 1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 10,
    "min_bytes": 0,
    "max_records": 100,
    "batch_size": 100,
    "session_epoch": 0,
    "replica_id": -1,
    "replica_epoch": -1,
    "current_leader_epoch": -1,
    "last_fetched_epoch": -1,
    "member_epoch": -1,
    "generation_id_or_member_epoch": -1,
    "generation_id": -1,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 100,
    "resource_type": 2,
    "timestamp": 1,
    "producer_id": 7,
    "rebalance_timeout": datetime.timedelta(seconds=1),
    "session_timeout": datetime.timedelta(seconds=10),
    "timeout": datetime.timedelta(seconds=1),
    "member_id": "",
    "protocol_type": "consumer",
    "transactional_id": "fuzz",
    "v3_and_below_transactional_id": "fuzz",
    "configuration_keys": "retention.ms",
    "response_partition_limit": 2000,
    # Only tried: ten thousand topics would be a test of the disk.
    "validate_only": True,
    "allow_auto_topic_creation": False,
}
_SPECIAL: dict[tuple[int, str], Any] = {
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "member_epoch"): 0,
    (ApiKey.SHARE_GROUP_HEARTBEAT, "member_epoch"): 0,
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, "member_id"): "AAAAAAAAAAAAAAAAAAAAAQ",
    (ApiKey.SHARE_GROUP_HEARTBEAT, "member_id"): "AAAAAAAAAAAAAAAAAAAAAQ",
    (ApiKey.SHARE_FETCH, "member_id"): "AAAAAAAAAAAAAAAAAAAAAQ",
    (ApiKey.SHARE_ACKNOWLEDGE, "member_id"): "AAAAAAAAAAAAAAAAAAAAAQ",
    (ApiKey.PRODUCE, "transactional_id"): None,
    (ApiKey.DELETE_RECORDS, "offset"): -1,
    (ApiKey.CREATE_TOPICS, "name"): "new",
}
_ABSENT = frozenset(
    {"server_assignor", "group_instance_id", "instance_id", "rack_id", "cursor", "subscribed_topic_regex", "topic_id"}
)
"""Left null where that is allowed."""


_EMPTY_ARRAYS = frozenset({"topic_partitions", "acknowledgement_batches"})
"""Unless it is the long one, or leads there: a member that joins owns nothing, and has nothing to acknowledge."""


class Existing(NamedTuple):
    topic: str
    topic_id: uuid.UUID
    partitions: int


class Largest(NamedTuple):
    api: str
    array: str
    kind: str
    entries: int
    frame: bytes


def largest_requests(
    api_key: int, version: int, existing: Existing, *, entries_max: int = sys.maxsize
) -> Iterator[Largest]:
    """One for each array of the request and each kind of names; one in all where there is no array."""
    cls = importlib.import_module("kio.index").load_request_schema(api_key, version)
    paths = list(_arrays(cls)) or [()]
    for path in paths:
        for kind in ("existing", "made up"):
            maker = _Maker(api_key, existing if kind == "existing" else None)
            sample = len(messages.encode_request(1, "fuzz", maker.request(cls, path, _SAMPLE)))
            least = len(messages.encode_request(1, "fuzz", maker.request(cls, path, 0)))
            size = max(1.0, (sample - least) / _SAMPLE)
            # Later entries have longer numbers and names.
            count = (
                min(entries_max, int((min(BYTES_MAX, API_TABLE[api_key].bytes_max) - 4096) / (size + 4))) if path else 0
            )
            count = min(count, _entries_max(api_key) // len(_below(cls, path)) - 10)
            frame = messages.encode_request(1, "fuzz", maker.request(cls, path, count))
            yield Largest(APIS[api_key].name, ".".join(path), kind, count, frame)


def _below(cls: type, path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The array itself, and those that each of its entries has."""
    return [each for each in _arrays(cls) if each[: len(path)] == path] or [()]


def _entries_max(api_key: int) -> int:
    return PARTITIONS_MAX // 2 if api_key == ApiKey.PRODUCE else API_TABLE[api_key].entries_max


@cache
def _fields(cls: type) -> list[tuple[dataclasses.Field[Any], Any, bool]]:
    """Each field, its type without None, and whether it may be None."""
    hints = typing.get_type_hints(cls)
    return [
        (field, _bare(hints[field.name]), _bare(hints[field.name]) is not hints[field.name])
        for field in dataclasses.fields(cls)
    ]


def _arrays(cls: type) -> Iterator[tuple[str, ...]]:
    for field, bare, _ in _fields(cls):
        if typing.get_origin(bare) is tuple:
            yield (field.name,)
            item = typing.get_args(bare)[0]
            if dataclasses.is_dataclass(item):
                for path in _arrays(typing.cast(type, item)):
                    yield (field.name, *path)


@cache
def _by_id(cls: type) -> bool:
    return not any(field.name in _TOPIC_FIELDS for field in dataclasses.fields(cls))


class _Maker:
    def __init__(self, api_key: int, existing: Existing | None) -> None:
        self._api_key = api_key
        self._existing = existing
        self._defaults: dict[str, Any] = {
            "records": encode_batch([(b"key", b"value", time.time_ns() // 1_000_000, ())]),
            "bytes": b"",
            "bool": False,
            "timedelta_i32": datetime.timedelta(),
            "timedelta_i64": datetime.timedelta(),
            "datetime_i64": datetime.datetime.now(datetime.UTC),
            "float64": 0.0,
        }

    def request(self, cls: type, path: tuple[str, ...], count: int) -> Any:
        return self._entity(cls, path, count, 0)

    def _entity(self, cls: type, path: tuple[str, ...], count: int, number: int) -> Any:
        values: dict[str, Any] = {}
        for field, bare, is_optional in _fields(cls):
            inner = path[1:] if path[:1] == (field.name,) else ()
            if field.name in _EMPTY_ARRAYS and path[:1] != (field.name,):
                values[field.name] = ()
            elif typing.get_origin(bare) is tuple:
                many = count if path == (field.name,) else 1
                item = typing.get_args(bare)[0]
                values[field.name] = tuple(self._item(field, item, inner, count, number + n) for n in range(many))
            elif field.name in _ABSENT and is_optional and not _by_id(cls):
                values[field.name] = None
            else:
                values[field.name] = self._item(field, bare, inner, count, number)
        return cls(**values)

    def _item(self, field: dataclasses.Field[Any], hint: Any, path: tuple[str, ...], count: int, number: int) -> Any:
        if dataclasses.is_dataclass(hint):
            return self._entity(typing.cast(type, hint), path, count, number)
        name, kind = field.name, field.metadata["kafka_type"]
        if kind != "uuid" and (self._api_key, name) in _SPECIAL:
            value = _SPECIAL[self._api_key, name]
            return f"{value}{number}" if name == "name" else value
        if name in _VALUES:
            return _VALUES[name]
        if kind == "string":
            return self._text(name, number)
        existing = self._existing
        if kind == "uuid":
            return existing.topic_id if existing else uuid.UUID(int=number + 1000)
        if name in _PARTITION_FIELDS:
            return number % existing.partitions if existing else number
        return self._defaults.get(kind, 0)

    def _text(self, name: str, number: int) -> str:
        if name in _TOPIC_FIELDS:
            return self._existing.topic if self._existing else f"made-up-{number}"
        if name in _GROUP_FIELDS:
            return f"fuzz-{number}"
        return f"x{number}" if name.endswith(("name", "names")) else ""


def _bare(hint: Any) -> Any:
    arguments = typing.get_args(hint)
    if type(None) in arguments and typing.get_origin(hint) is not tuple:
        return next(one for one in arguments if one is not type(None))
    return hint
