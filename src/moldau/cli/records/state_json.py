"""Records of Kafka's own topics as JSON, as Kafka's message formatters and log dumper write them.

`__consumer_offsets`, `__transaction_state` and `__share_group_state` are written by brokers for themselves. What
their records hold stands in the coordinators' tables; here those are only spelt as Kafka spells them.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import struct
import uuid
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.wire.constants import SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from moldau.wire.state_records import StateRecords

_INT16 = struct.Struct(">h")


class StateRecord(NamedTuple):
    kind: int
    key: dict[str, Any]
    version: int  # of the value; -1 for a tombstone
    value: dict[str, Any] | None


Reader = Callable[[bytes, "bytes | None"], "StateRecord | None"]


@cache
def reader(topic: str) -> Reader:
    """Reads the records of one state topic; None for a kind that is not known here."""

    def read(key: bytes, value: bytes | None) -> StateRecord | None:
        decoded = _tables(topic).decode(key, value)
        if decoded is None:
            return None
        version = -1 if value is None else _INT16.unpack_from(value)[0]
        kind = _INT16.unpack_from(key)[0]
        return StateRecord(
            kind, as_json(decoded[0], 0), version, None if value is None else as_json(decoded[1], version)
        )

    return read


@cache
def _tables(topic: str) -> StateRecords:
    from moldau.coordinators.share.records import STATE_RECORDS
    from moldau.wire.state_records import StateRecords

    if topic == SHARE_STATE_TOPIC:
        return STATE_RECORDS
    if topic == TRANSACTIONS_TOPIC:
        from moldau.coordinators.transactions import records as transactions

        return StateRecords(transactions.KINDS)
    from moldau.coordinators.classic import records as classic
    from moldau.coordinators.consumer import records as consumer
    from moldau.coordinators.offsets import records as offsets
    from moldau.coordinators.share import records as share

    return StateRecords(offsets.KINDS | classic.KINDS | consumer.KINDS | share.KINDS)


def as_json(entity: Any, version: int) -> dict[str, Any]:
    """The fields of that version, in the tables' order; tagged ones not where they have their default (but null)."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(entity):
        spec, value = field.metadata["wire"], getattr(entity, field.name)
        is_left_out = spec.tag is not None and value is not None and value == field.default
        if spec.since <= version <= spec.until and not is_left_out:
            fields[_camel(field.name)] = _plain(value, version)
    return fields


def compact(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any, version: int) -> Any:
    if isinstance(value, tuple):
        return [_plain(item, version) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, uuid.UUID):
        from moldau.wire.uuids import uuid_to_text

        return uuid_to_text(value)
    return as_json(value, version) if dataclasses.is_dataclass(value) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
