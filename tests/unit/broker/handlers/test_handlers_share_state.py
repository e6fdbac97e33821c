"""What brokers ask a share coordinator (83–87): the state of one queue from its beginning to its end."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from moldau.broker.coordination.share_state_client import NAMES
from moldau.coordinators.share.partition import StateBatch, StateWrite
from moldau.coordinators.share.state_shard import UNINITIALIZED, Epochs, ShareKey
from moldau.errors import ErrorCode
from moldau.wire.apis import APIS, ApiKey
from tests.unit.broker.offline import OfflineBroker

GROUP = "queue"
INITIALIZE, READ, WRITE, DELETE, SUMMARY = NAMES


@pytest.fixture
async def topic_id(offline_broker: OfflineBroker) -> uuid.UUID:
    await offline_broker.create("t", 2)
    await offline_broker.node.share_state.ready()
    return offline_broker.node.metadata.image.topics["t"].topic_id


async def ask(broker: OfflineBroker, api: ApiKey, topic_id: uuid.UUID, partition: int = 0, **fields: Any) -> Any:
    """The result for the one partition, in the newest version."""
    verb, suffix = NAMES[api]

    def build(schema: Any) -> Any:
        batches = tuple(schema.StateBatch(**batch) for batch in fields.pop("state_batches", ()))
        more = {"state_batches": batches} if api is WRITE else {}
        data = schema.PartitionData(partition=partition, **fields, **more)
        topic = getattr(schema, f"{verb}State{suffix}Data")(topic_id=topic_id, partitions=(data,))
        return getattr(schema, f"{verb}ShareGroupState{suffix}Request")(group_id=GROUP, topics=(topic,))

    answer = await broker.ask(api, APIS[api].max_version, build)
    (topic,) = answer.results
    assert topic.topic_id == topic_id
    (result,) = topic.partitions
    assert result.partition == partition
    return result


async def test_a_state_is_begun_written_read_and_deleted(offline_broker: OfflineBroker, topic_id: uuid.UUID) -> None:
    assert (await ask(offline_broker, SUMMARY, topic_id, leader_epoch=-1)).start_offset == UNINITIALIZED
    begun = await ask(offline_broker, INITIALIZE, topic_id, state_epoch=2, start_offset=5)
    assert begun.error_code == ErrorCode.NONE
    batch = {"first_offset": 6, "last_offset": 8, "delivery_state": 2, "delivery_count": 1}
    written = await ask(
        offline_broker,
        WRITE,
        topic_id,
        state_epoch=2,
        leader_epoch=4,
        start_offset=6,
        delivery_complete_count=3,
        state_batches=(batch,),
    )
    assert written.error_code == ErrorCode.NONE
    state = await ask(offline_broker, READ, topic_id, leader_epoch=4)
    assert (state.state_epoch, state.start_offset) == (2, 6)
    assert [(one.first_offset, one.last_offset, one.delivery_state) for one in state.state_batches] == [(6, 8, 2)]
    summary = await ask(offline_broker, SUMMARY, topic_id, leader_epoch=-1)
    assert (summary.start_offset, summary.leader_epoch, summary.delivery_complete_count) == (6, 4, 3)
    assert (await ask(offline_broker, DELETE, topic_id)).error_code == ErrorCode.NONE
    assert (await ask(offline_broker, SUMMARY, topic_id, leader_epoch=-1)).start_offset == UNINITIALIZED


async def test_old_leaders_and_topics_that_are_not_there_are_refused(
    offline_broker: OfflineBroker, topic_id: uuid.UUID
) -> None:
    await ask(offline_broker, READ, topic_id, leader_epoch=4)
    late = await ask(offline_broker, READ, topic_id, leader_epoch=3)
    assert late.error_code == ErrorCode.FENCED_LEADER_EPOCH
    fields = {"state_epoch": 0, "leader_epoch": 3, "start_offset": 0, "delivery_complete_count": 0}
    assert (await ask(offline_broker, WRITE, topic_id, **fields)).error_code == ErrorCode.FENCED_LEADER_EPOCH
    for nowhere, partition in ((uuid.uuid4(), 0), (topic_id, 2), (topic_id, -1)):
        result = await ask(offline_broker, READ, nowhere, partition, leader_epoch=0)
        assert result.error_code in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_REQUEST)


async def test_a_broker_asks_itself_without_a_request(offline_broker: OfflineBroker, topic_id: uuid.UUID) -> None:
    states: Any = offline_broker.node.share_partitions.states  # here they answer at once
    key = ShareKey(GROUP, topic_id, 1)
    assert states.read(key, 0).start_offset == UNINITIALIZED
    assert states.write(key, Epochs(0, 0), StateWrite(3, 0, (StateBatch(4, 4, 2, 1),))) is None
    assert states.summary(key).start_offset == 3
    assert offline_broker.node.metrics.requests[READ] == 0
