"""Clients that ask for what is not served leave one line in the log."""

from __future__ import annotations

import struct

import pytest

from moldau.errors import UnservedRequestError
from moldau.wire.apis import ApiKey
from tests.unit.broker.offline import OfflineBroker

OLD = (
    (ApiKey.PRODUCE, 0, "Produce v0 (Kafka 0.8)"),
    (ApiKey.PRODUCE, 1, "Produce v1 (Kafka 0.9)"),
    (ApiKey.PRODUCE, 2, "Produce v2 (Kafka 0.10)"),
    (ApiKey.FETCH, 1, "Fetch v1 (Kafka 0.9)"),
    (ApiKey.FETCH, 3, "Fetch v3 (Kafka 0.10.1 or 0.10.2)"),
    (ApiKey.LIST_OFFSETS, 0, "ListOffsets v0 (Kafka 0.8 to 0.10.0)"),
    (ApiKey.OFFSET_COMMIT, 1, "OffsetCommit v1 (Kafka 0.8.2)"),
    (ApiKey.OFFSET_FETCH, 0, "OffsetFetch v0 (Kafka 0.8.1)"),
    (ApiKey.CREATE_TOPICS, 1, "CreateTopics v1 (Kafka 0.10.2)"),
    (ApiKey.DELETE_TOPICS, 0, "DeleteTopics v0 (Kafka 0.10.1 or 0.10.2)"),
)


async def ask(broker: OfflineBroker, key: int, version: int, client_id: bytes = b"billing") -> str:
    frame = struct.pack(">hhih", key, version, 1, len(client_id)) + client_id + b"\0"
    with pytest.raises(UnservedRequestError) as refused:
        await broker.send(frame)
    return str(refused.value)


@pytest.mark.parametrize(("key", "version", "words"), OLD)
async def test_an_old_client_is_named_with_what_to_use(
    offline_broker: OfflineBroker, caplog: pytest.LogCaptureFixture, key: int, version: int, words: str
) -> None:
    await ask(offline_broker, key, version)
    (record,) = caplog.records
    assert words in record.getMessage()
    assert "use a client of Kafka 0.11 or newer" in record.getMessage()
    assert (vars(record)["client"], vars(record)["address"]) == ("billing", "127.0.0.1")


async def test_each_client_has_one_line_however_often_it_comes(
    offline_broker: OfflineBroker, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(20):
        await ask(offline_broker, ApiKey.PRODUCE, 1, b"a")
        await ask(offline_broker, ApiKey.FETCH, 1, b"a")
        await ask(offline_broker, ApiKey.FETCH, 1, b"b")
    assert [vars(record)["client"] for record in caplog.records] == ["a", "b"]


async def test_what_is_too_new_or_unknown_is_called_that(offline_broker: OfflineBroker) -> None:
    assert "too new: it requested Heartbeat v99, but this broker supports versions up to v4" in await ask(
        offline_broker, ApiKey.HEARTBEAT, 99
    )
    assert "requested PushTelemetry v0, which this broker does not support" in await ask(
        offline_broker, ApiKey.PUSH_TELEMETRY, 0
    )
