"""ShareFetch, ShareAcknowledge and a share group's offsets, request by request, in each version."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from moldau import Broker
from moldau.broker.coordination.share_fetching import READS_MAX
from moldau.client.admin import Resource, alter_configs, delete_topics
from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.constants import ResourceType
from moldau.wire.messages import ms, request_schema
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.raw import RawClient, batch_of
from tests.integration.raw_txn import RawProducer
from tests.integration.waiting import eventually

SHORT_LOCKS = {"group.share.min.record.lock.duration.ms": 1_000, "group.share.record.lock.duration.ms": 1_000}
ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
VERSIONS = (1, 2)

Acquired = list[tuple[int, int, int]]
"""First offset, last offset, delivery count."""


class Member:
    """A member of a share group that does exactly what it is told."""

    def __init__(self, client: RawClient, group: str, topic: str, version: int = 2) -> None:
        self.client = client
        self.group = group
        self.topic = topic
        self.topic_id = client.topic_id(topic)
        self.version = version
        self.id = str(uuid.uuid4())
        self.epoch = 0

    def join(self) -> Any:
        find = request_schema(ApiKey.FIND_COORDINATOR, 3).FindCoordinatorRequest(key=self.group, key_type=0)
        assert self.client.ask(find).error_code == 0
        return self.beat(0, self.topic)

    def beat(self, epoch: int, *topics: str) -> Any:
        return self.client.ask(
            request_schema(ApiKey.SHARE_GROUP_HEARTBEAT, 1).ShareGroupHeartbeatRequest(
                group_id=self.group,
                member_id=self.id,
                member_epoch=epoch,
                rack_id=None,
                subscribed_topic_names=topics or None,
            )
        )

    def fetch_request(
        self,
        *acks: tuple[int, int, list[int]],
        epoch: int | None = None,
        partitions: Iterable[int] = (0,),
        **fields: Any,
    ) -> Any:
        schema = request_schema(ApiKey.SHARE_FETCH, self.version)
        wanted = {
            "max_wait": ms(0),
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": 100,
            "batch_size": 100,
            "share_acquire_mode": 0,
            "is_renew_ack": False,
            **fields,
        }
        request = schema.ShareFetchRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=self._topics(schema.FetchTopic, schema.FetchPartition, schema, acks, partitions),
            forgotten_topics_data=(),
            **wanted,
        )
        if epoch is None:
            self.epoch += 1
        return request

    def _topics(
        self, topic: Any, partition: Any, schema: Any, acks: Any, indexes: Iterable[int] = (0,)
    ) -> tuple[Any, ...]:
        batches = tuple(
            schema.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=tuple(types))
            for first, last, types in acks
        )
        named = tuple(partition(partition_index=index, acknowledgement_batches=batches) for index in indexes)
        return (topic(topic_id=self.topic_id, partitions=named),)

    def fetch(self, *acks: tuple[int, int, list[int]], **fields: Any) -> Any:
        return self.client.ask(self.fetch_request(*acks, **fields))

    def take(self, *acks: tuple[int, int, list[int]], **fields: Any) -> Acquired:
        """What a fetch acquires."""
        response = self.fetch(*acks, **fields)
        assert response.error_code == 0
        if not response.responses:
            return []
        (topic,) = response.responses
        (partition,) = topic.partitions
        assert (partition.error_code, partition.acknowledge_error_code) == (0, 0)
        return [(one.first_offset, one.last_offset, one.delivery_count) for one in partition.acquired_records]

    def acknowledge(
        self, first: int, last: int, *types: int, epoch: int | None = None, renew: bool = False
    ) -> ErrorCode:
        schema = request_schema(ApiKey.SHARE_ACKNOWLEDGE, self.version)
        request = schema.ShareAcknowledgeRequest(
            group_id=self.group,
            member_id=self.id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=False,
            topics=self._topics(schema.AcknowledgeTopic, schema.AcknowledgePartition, schema, [(first, last, types)]),
        )
        response = self.client.ask(request)
        if response.error_code:
            return ErrorCode(response.error_code)
        if epoch is None:
            self.epoch += 1
        return ErrorCode(response.responses[0].partitions[0].error_code)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(SHORT_LOCKS) as broker:
        yield broker.bootstrap_servers


NewMember = Callable[..., Member]


@pytest.fixture
def member(connect: Callable[..., RawClient], bootstrap: str) -> NewMember:
    """`member()` is in a group of its own that begins with the oldest record; `member(like)` in that one's."""

    def make(like: Member | None = None, version: int = 2, **configs: str) -> Member:
        if like is not None:
            one = Member(connect(), like.group, like.topic, version)
        else:
            group = f"group-{uuid.uuid4().hex[:12]}"
            with cluster_at(bootstrap) as cluster:
                values = {"share.auto.offset.reset": "earliest", **configs}
                alter_configs(cluster, Resource(ResourceType.GROUP, group), set_values=values)
            one = Member(connect(), group, make_topic(bootstrap), version)
        assert one.join().error_code == 0
        return one

    return make


def write(member: Member, count: int) -> None:
    answer = member.client.produce(member.topic, batch_of(*(b"%d" % number for number in range(count))))
    assert answer.error_code == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_fetched_and_acknowledged_with_the_next_fetch(member: NewMember, version: int) -> None:
    one = member(version=version)
    write(one, 5)
    assert one.take() == [(0, 4, 1)]
    write(one, 2)
    assert one.take((0, 4, [ACCEPT, ACCEPT, RELEASE, REJECT, ACCEPT])) == [(2, 2, 2), (5, 6, 1)]
    assert one.acknowledge(2, 2, ACCEPT) is ErrorCode.NONE
    assert one.acknowledge(5, 6, ACCEPT, epoch=-1) is ErrorCode.NONE
    assert one.acknowledge(5, 6, ACCEPT) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_what_is_not_acquired_cannot_be_acknowledged(member: NewMember) -> None:
    one = member()
    other = member(one)
    write(one, 3)
    assert one.take() == [(0, 2, 1)]
    assert other.take() == []
    assert other.acknowledge(0, 2, ACCEPT) is ErrorCode.INVALID_RECORD_STATE
    assert one.acknowledge(0, 9, ACCEPT) is ErrorCode.INVALID_REQUEST
    assert one.acknowledge(2, 0, ACCEPT) is ErrorCode.INVALID_REQUEST
    assert one.acknowledge(0, 2, 7) is ErrorCode.INVALID_REQUEST
    assert one.acknowledge(0, 2, RENEW) is ErrorCode.INVALID_REQUEST
    assert one.acknowledge(0, 2, ACCEPT) is ErrorCode.NONE
    assert one.acknowledge(0, 2, ACCEPT) is ErrorCode.INVALID_RECORD_STATE, "it is over"


def test_sessions_have_an_order(member: NewMember) -> None:
    one = member()
    assert one.fetch(epoch=3).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    assert one.fetch((0, 0, [ACCEPT])).error_code == ErrorCode.INVALID_REQUEST
    one.epoch = 0
    assert one.take() == []
    assert one.fetch(epoch=7).error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert one.acknowledge(0, 0, ACCEPT, epoch=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert one.fetch(epoch=-1).error_code == 0
    assert one.fetch(epoch=-1).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
    one.id = "x" * 37
    assert one.fetch(epoch=0).error_code == ErrorCode.INVALID_REQUEST


def test_the_end_of_a_session_releases_what_it_held(member: NewMember) -> None:
    one = member()
    other = member(one)
    write(one, 4)
    assert one.take() == [(0, 3, 1)]
    assert one.fetch((0, 1, [ACCEPT]), epoch=-1).error_code == 0
    assert other.take() == [(2, 3, 1)]


def test_an_exact_number_of_records_cuts_a_batch(member: NewMember) -> None:
    one = member()
    write(one, 10)
    assert one.take(max_records=3) == [(0, 9, 1)]
    other = member()
    write(other, 10)
    assert other.take(max_records=3, share_acquire_mode=1) == [(0, 2, 1)]
    assert other.take(max_records=3, share_acquire_mode=1) == [(3, 5, 1)]


def test_a_renewed_lock_outlives_the_first_one(member: NewMember) -> None:
    one = member()
    other = member(one)
    write(one, 2)
    nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0}
    began = time.monotonic()
    assert one.take() == [(0, 1, 1)]
    renewals = 0
    while time.monotonic() - began < 1.5:
        assert one.take((0, 0, [RENEW]), is_renew_ack=True, **nothing) == []
        renewals += 1
        time.sleep(0.1)  # not to wait for a state: renewing is what keeps the lock
    assert renewals >= 3
    assert other.take() == [(1, 1, 2)], "only the other record's lock ran out"
    assert one.fetch((0, 0, [RENEW]), is_renew_ack=True).error_code == ErrorCode.INVALID_REQUEST


def test_a_fetch_waits_for_a_record(member: NewMember) -> None:
    one = member()
    request = one.fetch_request(max_wait=ms(20_000))
    one.client.send(request)
    assert not one.client.has_answer(0.1)
    write(member(one), 1)
    _, response = one.client.receive(request)
    assert response.responses[0].partitions[0].acquired_records[0].last_offset == 0


def test_a_fetch_waits_for_as_many_bytes_as_it_wants(member: NewMember) -> None:
    one = member()
    other = member(one)
    write(other, 1)
    request = one.fetch_request(max_wait=ms(20_000), min_bytes=500)
    one.client.send(request)
    assert not one.client.has_answer(0.1)
    write(other, 200)
    _, response = one.client.receive(request)
    acquired = response.responses[0].partitions[0].acquired_records
    assert (acquired[0].first_offset, acquired[-1].last_offset) == (0, 200)
    assert one.take(min_bytes=500) == []


def test_a_fetch_waits_for_a_record_that_another_member_releases(member: NewMember) -> None:
    one = member()
    other = member(one)
    write(one, 1)
    assert one.take() == [(0, 0, 1)]
    request = other.fetch_request(max_wait=ms(20_000))
    other.client.send(request)
    assert one.acknowledge(0, 0, RELEASE) is ErrorCode.NONE
    _, response = other.client.receive(request)
    assert response.responses[0].partitions[0].acquired_records[0].delivery_count == 2


def test_what_follows_a_long_aborted_transaction_is_found_by_a_fetch_that_waits(
    member: NewMember, connect: Callable[..., RawClient]
) -> None:
    one = member(**{"share.isolation.level": "read_committed"})
    producer = RawProducer(connect()).init()
    for _ in range(3 * READS_MAX):
        producer.write(one.topic, b"no")
    producer.abort()
    offset = producer.write(one.topic, b"yes")
    producer.commit()
    # One batch at a time is looked at.
    assert one.take(max_wait=ms(20_000), max_records=1) == [(offset, offset, 1)]


def test_each_of_many_partitions_wakes_the_fetch_that_waits(bootstrap: str, connect: Callable[..., RawClient]) -> None:
    one = Member(connect(), f"group-{uuid.uuid4().hex[:12]}", make_topic(bootstrap, 50))
    assert one.join().error_code == 0
    assert one.take(partitions=range(50)) == []
    for index in (49, 0, 7):
        request = one.fetch_request(max_wait=ms(20_000), partitions=())
        one.client.send(request)
        connect().produce(one.topic, batch_of(b"x"), index)
        _, response = one.client.receive(request)
        assert [each.partition_index for each in response.responses[0].partitions] == [index]


def test_a_topic_that_is_deleted_ends_the_wait(member: NewMember, bootstrap: str) -> None:
    one = member()
    request = one.fetch_request(max_wait=ms(20_000))
    one.client.send(request)
    assert not one.client.has_answer(0.05)
    with cluster_at(bootstrap) as cluster:
        delete_topics(cluster, [one.topic])
    _, response = one.client.receive(request)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


# -- offsets


def offsets(client: RawClient, group: str, topics: Mapping[str, tuple[int, ...]] | None, version: int = 1) -> Any:
    schema = request_schema(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, version)
    wanted = None
    if topics is not None:
        wanted = tuple(
            schema.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=partitions)
            for name, partitions in topics.items()
        )
    asked = schema.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=wanted)
    return client.ask(schema.DescribeShareGroupOffsetsRequest(groups=(asked,))).groups[0]


def alter(client: RawClient, group: str, topic: str, partition: int, offset: int) -> Any:
    schema = request_schema(ApiKey.ALTER_SHARE_GROUP_OFFSETS, 0)
    wanted = schema.AlterShareGroupOffsetsRequestPartition(partition_index=partition, start_offset=offset)
    request = schema.AlterShareGroupOffsetsRequest(
        group_id=group,
        topics=(schema.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=(wanted,)),),
    )
    return client.ask(request)


def delete(client: RawClient, group: str, *topics: str) -> Any:
    schema = request_schema(ApiKey.DELETE_SHARE_GROUP_OFFSETS, 0)
    named = tuple(schema.DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics)
    return client.ask(schema.DeleteShareGroupOffsetsRequest(group_id=group, topics=named))


@pytest.mark.parametrize("version", [0, 1])
def test_offsets_are_described(member: NewMember, version: int) -> None:
    one = member()
    write(one, 5)
    one.take()
    one.acknowledge(0, 3, ACCEPT, ACCEPT, RELEASE, ACCEPT)
    for topics in (None, {one.topic: (0,)}):
        (topic,) = offsets(one.client, one.group, topics, version).topics
        (partition,) = topic.partitions
        assert (topic.topic_name, topic.topic_id, partition.start_offset) == (one.topic, one.topic_id, 2)
        assert getattr(partition, "lag", 2) == 2
    missing = offsets(one.client, one.group, {"nowhere": (0,)}, version).topics[0].partitions[0]
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(one.client, "no group", None, version).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_offsets_of_an_empty_group_are_altered_and_deleted(member: NewMember, bootstrap: str) -> None:
    one = member()
    write(one, 5)
    one.take()
    one.acknowledge(0, 4, ACCEPT)
    client, group, topic = one.client, one.group, one.topic
    assert alter(client, group, topic, 0, 1).error_code == ErrorCode.NON_EMPTY_GROUP
    assert delete(client, group, topic).error_code == ErrorCode.NON_EMPTY_GROUP
    assert one.beat(-1).error_code == 0
    altered = alter(client, group, topic, 0, 3)
    assert (altered.error_code, altered.responses[0].partitions[0].error_code) == (0, 0)
    wrong = alter(client, group, topic, 7, 3).responses[0].partitions[0].error_code
    assert wrong == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert offsets(client, group, None).topics[0].partitions[0].start_offset == 3
    again = member(one)
    assert again.take() == [(3, 4, 1)]
    again.acknowledge(3, 4, ACCEPT, epoch=-1)
    again.beat(-1)
    deleted = delete(client, group, topic, "nowhere")
    assert [each.error_code for each in deleted.responses] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert offsets(client, group, None).topics == ()
    assert member(one).take() == [(0, 4, 1)], "a queue without a state begins anew"


def test_a_deleted_group_begins_anew(member: NewMember) -> None:
    one = member()
    write(one, 2)
    one.take()
    one.acknowledge(0, 1, ACCEPT)
    request = request_schema(ApiKey.DELETE_GROUPS, 2).DeleteGroupsRequest(groups_names=(one.group,))
    assert one.client.ask(request).results[0].error_code == ErrorCode.NON_EMPTY_GROUP
    one.beat(-1)
    assert one.client.ask(request).results[0].error_code == 0
    assert offsets(one.client, one.group, None).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert member(one).take() == [(0, 1, 1)]


def test_a_group_that_nobody_fetched_for_is_described_and_deleted() -> None:
    with Broker() as broker, RawClient(broker.bootstrap_servers) as client:
        one = Member(client, "queue", make_topic(broker.bootstrap_servers))
        one.join()
        one.beat(-1)
        (topic,) = offsets(client, one.group, None).topics
        assert [(each.start_offset, each.error_code) for each in topic.partitions] == [(-1, 0)]
        assert [each.error_code for each in delete(client, one.group, one.topic).responses] == [0]
        request = request_schema(ApiKey.DELETE_GROUPS, 2).DeleteGroupsRequest(groups_names=(one.group,))
        assert client.ask(request).results[0].error_code == 0


def test_described_groups_show_their_members(member: NewMember) -> None:
    one = member()
    schema = request_schema(ApiKey.SHARE_GROUP_DESCRIBE, 1)
    request = schema.ShareGroupDescribeRequest(group_ids=(one.group, "no group"), include_authorized_operations=False)
    group, missing = one.client.ask(request).groups
    assert (group.error_code, group.group_state, group.assignor_name) == (0, "Stable", "simple")
    (described,) = group.members
    assert (described.member_id, described.member_epoch, described.subscribed_topic_names) == (one.id, 1, (one.topic,))
    (topic,) = described.assignment.topic_partitions
    assert (topic.topic_name, topic.partitions) == (one.topic, (0,))
    assert (missing.error_code, missing.group_state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_the_state_topic_does_not_grow_for_ever(tmp_path: Path) -> None:
    properties = {
        "share.coordinator.state.topic.num.partitions": 1,
        "share.coordinator.state.topic.prune.interval.ms": 100,
    }
    count = 1_200
    with Broker(properties, data_dir=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        one = Member(client, "queue", make_topic(broker.bootstrap_servers, name="t"))
        one.join()
        assert one.take() == []
        write(one, count)
        assert one.take(max_records=count) == [(0, count - 1, 1)]
        for offset in range(1, count):
            assert one.acknowledge(offset, offset, ACCEPT if offset % 2 else RELEASE) is ErrorCode.NONE

        def log_start() -> int:
            return int(client.fetch("__share_group_state", count, version=11).log_start_offset)

        eventually(lambda: log_start() > 0, "old state is deleted")
        one.acknowledge(0, 0, RELEASE)
    with Broker(properties, data_dir=tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        one = Member(client, "queue", "t")
        one.join()
        taken: list[Acquired] = [[]]

        def take() -> Acquired:
            taken.append(one.take(max_records=count))
            return taken[-1]

        eventually(take, "the state is loaded")
        assert taken[-1] == [(offset, offset, 2) for offset in range(0, count, 2)]
