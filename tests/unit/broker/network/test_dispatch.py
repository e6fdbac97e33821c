"""The limits on what reaches the handlers."""

from __future__ import annotations

import struct

import pytest

from moldau.broker.handlers.api_table import FETCH_BYTES_MAX, REFUSED_BYTES_MAX
from moldau.errors import ErrorCode, ProtocolError
from moldau.wire.apis import ApiKey
from moldau.wire.batch import encode_batch
from moldau.wire.messages import Schema, ms
from tests.unit.broker.offline import OfflineBroker


async def test_a_fetch_of_a_million_partitions_is_refused_before_it_is_read(offline_broker: OfflineBroker) -> None:
    frame = struct.pack(">hhih", ApiKey.FETCH, 11, 1, -1) + bytes(FETCH_BYTES_MAX)
    with pytest.raises(ProtocolError, match="Fetch request of"):
        await offline_broker.send(frame)


@pytest.mark.parametrize("key", [ApiKey.CREATE_ACLS, ApiKey.UPDATE_FEATURES, ApiKey.ALTER_CLIENT_QUOTAS])
async def test_what_is_refused_anyway_may_not_be_long(offline_broker: OfflineBroker, key: ApiKey) -> None:
    frame = struct.pack(">hhih", key, 1, 1, -1) + bytes(REFUSED_BYTES_MAX)
    with pytest.raises(ProtocolError, match="exceeds the limit"):
        await offline_broker.send(frame)


async def test_a_transactional_batch_without_its_id_is_refused(offline_broker: OfflineBroker) -> None:
    """Nobody could end its transaction, and readers of committed records would wait for ever."""
    await offline_broker.create("orders")
    batch = encode_batch(
        [(b"k", b"v", 1_700_000_000_000, ())], producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True
    )

    def produce(schema: Schema) -> object:
        partition = schema.PartitionProduceData(index=0, records=batch)
        topic = schema.TopicProduceData(name="orders", partition_data=(partition,))
        return schema.ProduceRequest(transactional_id=None, acks=-1, timeout=ms(1000), topic_data=(topic,))

    answer = await offline_broker.ask(ApiKey.PRODUCE, 9, produce)
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert offline_broker.node.find_partition("orders", None, 0).log.log_end_offset == 0
