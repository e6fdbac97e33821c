"""JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DescribeGroups, ListGroups and DeleteGroups, in every version."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker.handlers.groups.classic_groups import _heartbeat_frame
from moldau.coordinators.classic.base import State
from moldau.coordinators.classic.records import GroupMetadataKey
from moldau.errors import ErrorCode
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import (
    Schema,
    decode_response,
    encode_request,
    encode_response,
    error,
    ms,
    request_schema,
    response_schema,
)
from moldau.wire.state_records import encode_key
from tests.unit.broker.offline import OfflineBroker, StartOffline, until

E = ErrorCode
GROUP = "readers"


def versions(key: ApiKey) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)


class Group:
    """A group as its members see it, each request in a version of its own."""

    def __init__(self, broker: OfflineBroker, group_id: str = GROUP, **versions_: int) -> None:
        self.broker = broker
        self.group_id = group_id
        self.version = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5, **versions_}

    async def ask(self, key: ApiKey, version: int, build: Callable[[Schema], Any]) -> Any:
        return await asyncio.wait_for(self.broker.ask(key, version, build), 10)

    async def reaches(self, state: State) -> None:
        group: Any = self.broker.node.groups.shard(self.group_id).groups[self.group_id]
        await until(lambda: group.state is state)

    async def join(self, member_id: str = "", instance_id: str | None = None, **changes: Any) -> Any:
        def build(schema: Schema) -> Any:
            fields: dict[str, Any] = {
                "group_id": self.group_id,
                "session_timeout": ms(10_000),
                "rebalance_timeout": ms(60_000),
                "member_id": member_id,
                "group_instance_id": instance_id,
                "protocol_type": "consumer",
                "protocols": (schema.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\0"),),
                "reason": "a test",
            }
            return schema.JoinGroupRequest(**{**fields, **changes})

        answer = await self.ask(ApiKey.JOIN_GROUP, self.version["join"], build)
        if answer.error_code == E.MEMBER_ID_REQUIRED:
            assert self.version["join"] >= 4
            return await self.join(answer.member_id, instance_id, **changes)
        return answer

    async def sync(self, joined: Any, *assignments: tuple[str, bytes], **changes: Any) -> Any:
        def build(schema: Schema) -> Any:
            fields: dict[str, Any] = {
                "group_id": self.group_id,
                "generation_id": joined.generation_id,
                "member_id": joined.member_id,
                "group_instance_id": None,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "assignments": tuple(
                    schema.SyncGroupRequestAssignment(member_id=member_id, assignment=share)
                    for member_id, share in assignments
                ),
            }
            return schema.SyncGroupRequest(**{**fields, **changes})

        return await self.ask(ApiKey.SYNC_GROUP, self.version["sync"], build)

    async def heartbeat(self, joined: Any) -> int:
        answer = await self.ask(
            ApiKey.HEARTBEAT,
            self.version["heartbeat"],
            lambda schema: schema.HeartbeatRequest(
                group_id=self.group_id,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                group_instance_id=None,
            ),
        )
        return int(answer.error_code)

    async def leave(self, *member_ids: str) -> Any:
        def build(schema: Schema) -> Any:
            if self.version["leave"] < 3:
                return schema.LeaveGroupRequest(group_id=self.group_id, member_id=member_ids[0])
            members = tuple(
                schema.MemberIdentity(member_id=member_id, group_instance_id=None, reason="done")
                for member_id in member_ids
            )
            return schema.LeaveGroupRequest(group_id=self.group_id, members=members)

        return await self.ask(ApiKey.LEAVE_GROUP, self.version["leave"], build)

    async def describe(self, version: int = 6) -> Any:
        def build(schema: Schema) -> Any:
            return schema.DescribeGroupsRequest(groups=(self.group_id,), include_authorized_operations=version >= 3)

        (described,) = (await self.ask(ApiKey.DESCRIBE_GROUPS, version, build)).groups
        return described

    async def delete(self, version: int = 2) -> int:
        answer = await self.ask(
            ApiKey.DELETE_GROUPS, version, lambda schema: schema.DeleteGroupsRequest(groups_names=(self.group_id,))
        )
        return int(answer.results[0].error_code)


async def list_groups(broker: OfflineBroker, version: int = 5, **filters: Any) -> list[Any]:
    answer = await broker.ask(ApiKey.LIST_GROUPS, version, lambda schema: schema.ListGroupsRequest(**filters))
    assert answer.error_code == 0
    return list(answer.groups)


@pytest.fixture
async def broker(start_offline: StartOffline) -> OfflineBroker:
    broker = start_offline({"offsets.topic.num.partitions": "2"})
    await broker.node.groups.ready()
    return broker


@pytest.mark.parametrize("version", range(10))
async def test_two_members_go_through_a_round_in_every_version(broker: OfflineBroker, version: int) -> None:
    newest = {"join": 9, "sync": 5, "heartbeat": 4, "leave": 5}
    group = Group(broker, GROUP, **{name: min(version, most) for name, most in newest.items()})
    first = await group.join()
    assert (first.error_code, first.generation_id, first.protocol_name) == (0, 1, "range")
    assert first.leader == first.member_id
    waiting = asyncio.create_task(group.join())
    await group.reaches(State.PREPARING)
    leader = await group.join(first.member_id)
    follower = await waiting
    assert {member.member_id for member in leader.members} == {leader.member_id, follower.member_id}
    assert follower.members == ()
    early = asyncio.create_task(group.sync(follower))
    await asyncio.sleep(0)
    assert not early.done()
    synced = await group.sync(leader, (leader.member_id, b"L"), (follower.member_id, b"F"))
    assert (synced.error_code, synced.assignment) == (0, b"L")
    assert (await early).assignment == b"F"
    assert await group.heartbeat(leader) == 0
    left = await group.leave(follower.member_id)
    assert left.error_code == 0
    assert await group.heartbeat(follower) == E.UNKNOWN_MEMBER_ID
    assert await group.heartbeat(leader) == E.REBALANCE_IN_PROGRESS
    left = await group.leave("nobody")
    codes = [left.error_code] if group.version["leave"] < 3 else [member.error_code for member in left.members]
    assert codes == [E.UNKNOWN_MEMBER_ID]


@pytest.mark.parametrize("version", versions(ApiKey.JOIN_GROUP))
async def test_a_refused_join_in_every_version(broker: OfflineBroker, version: int) -> None:
    group = Group(broker, join=version)
    refused = await group.join(session_timeout=ms(1))
    assert refused.error_code == E.INVALID_SESSION_TIMEOUT
    assert refused.protocol_name == (None if version >= 7 else "")
    assert (refused.generation_id, refused.member_id) == (-1, "")
    assert (await group.join("somebody")).error_code == E.UNKNOWN_MEMBER_ID
    assert (await Group(broker, "", join=version).join()).error_code == E.INVALID_GROUP_ID


@pytest.mark.parametrize("version", versions(ApiKey.SYNC_GROUP))
async def test_a_sync_has_to_name_its_protocol_since_version_5(broker: OfflineBroker, version: int) -> None:
    group = Group(broker, sync=version)
    joined = await group.join()
    synced = await group.sync(joined, protocol_name=None)
    assert synced.error_code == (E.INCONSISTENT_GROUP_PROTOCOL if version >= 5 else E.NONE)


async def test_a_static_leader_that_restarts_need_not_assign(broker: OfflineBroker) -> None:
    group = Group(broker)
    first = await group.join(instance_id="i")
    await group.sync(first, (first.member_id, b"A"), group_instance_id="i")
    again = await group.join(instance_id="i")
    assert (again.skip_assignment, again.generation_id) == (True, first.generation_id)
    assert again.member_id.startswith("i-")
    assert [member.group_instance_id for member in again.members] == ["i"]
    assert (await group.sync(first, group_instance_id="i")).error_code == E.FENCED_INSTANCE_ID
    assert (await group.sync(again, group_instance_id="i")).assignment == b"A"


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_GROUPS))
async def test_groups_are_described_in_every_version(broker: OfflineBroker, version: int) -> None:
    group = Group(broker)
    nothing = await group.describe(version)
    assert (nothing.group_state, nothing.members) == ("Dead", ())
    assert nothing.error_code == (E.GROUP_ID_NOT_FOUND if version >= 6 else E.NONE)
    joined = await group.join()
    assert (await group.describe(version)).group_state == "CompletingRebalance"
    await group.sync(joined, (joined.member_id, b"A"))
    described = await group.describe(version)
    assert (described.error_code, described.group_state) == (0, "Stable")
    assert (described.protocol_type, described.protocol_data) == ("consumer", "range")
    (member,) = described.members
    assert (member.member_id, member.client_id, member.client_host) == (joined.member_id, "test", "/127.0.0.1")
    assert (member.member_metadata, member.member_assignment) == (b"\0\0\0\0\0\0", b"A")


@pytest.mark.parametrize("version", versions(ApiKey.LIST_GROUPS))
async def test_groups_are_listed_in_every_version(broker: OfflineBroker, version: int) -> None:
    await Group(broker, "one").join()
    two = Group(broker, "two")
    await two.leave((await two.join()).member_id)
    found = {group.group_id: group for group in await list_groups(broker, version)}
    assert {group_id: group.protocol_type for group_id, group in found.items()} == {
        "one": "consumer",
        "two": "consumer",
    }
    if version >= 4:
        assert found["one"].group_state == "CompletingRebalance"
        assert [group.group_id for group in await list_groups(broker, version, states_filter=(" empty",))] == ["two"]
    if version >= 5:
        assert found["one"].group_type == "classic"
        assert len(await list_groups(broker, types_filter=("Classic",))) == 2
        assert await list_groups(broker, types_filter=("share",)) == []


@pytest.mark.parametrize("version", versions(ApiKey.DELETE_GROUPS))
async def test_only_empty_groups_are_deleted(broker: OfflineBroker, version: int) -> None:
    group = Group(broker)
    assert await group.delete(version) == E.GROUP_ID_NOT_FOUND
    joined = await group.join()
    assert await group.delete(version) == E.NON_EMPTY_GROUP
    await group.leave(joined.member_id)
    assert await group.delete(version) == 0
    assert await list_groups(broker) == []
    assert await group.delete(version) == E.GROUP_ID_NOT_FOUND


async def test_what_a_group_agreed_on_is_in_the_state_topic(broker: OfflineBroker) -> None:
    group = Group(broker)
    joined = await group.join()
    await group.sync(joined, (joined.member_id, b"ASSIGNED"))
    coordinator = broker.node.groups
    log = broker.node.find_partition(coordinator.topic, None, coordinator.partition_for(GROUP)).log
    data = bytes(log.read(log.log_start_offset, 1 << 20, upto_offset=log.log_end_offset, min_one=True))
    assert encode_key(GroupMetadataKey(GROUP)) in data
    assert b"ASSIGNED" in data


async def test_without_a_state_topic_there_is_no_coordinator(offline_broker: OfflineBroker) -> None:
    group = Group(offline_broker)
    assert (await group.join()).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert (await group.describe()).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert await group.delete() == E.COORDINATOR_NOT_AVAILABLE
    assert (await group.leave("m")).error_code == E.COORDINATOR_NOT_AVAILABLE
    assert await list_groups(offline_broker) == []


async def test_a_silent_member_is_put_out_by_the_brokers_clock(start_offline: StartOffline) -> None:
    broker = start_offline({"group.min.session.timeout.ms": "10"})
    await broker.node.groups.ready()
    group = Group(broker)
    joined = await group.join(session_timeout=ms(10))
    await group.reaches(State.EMPTY)
    assert await group.heartbeat(joined) == E.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", versions(ApiKey.HEARTBEAT))
@pytest.mark.parametrize("code", [E.NONE, E.REBALANCE_IN_PROGRESS])
def test_prepared_answers_to_heartbeats_are_the_schemas(version: int, code: ErrorCode) -> None:
    schema = response_schema(ApiKey.HEARTBEAT, version)
    size, rest = _heartbeat_frame(version, code)
    whole = encode_response(-2, schema.HeartbeatResponse(throttle_time=ms(0), error_code=error(code)))
    assert size + (-2).to_bytes(4, "big", signed=True) + rest == whole


@pytest.mark.parametrize("version", [3, 9])
async def test_a_client_with_the_longest_of_names_can_be_a_member(broker: OfflineBroker, version: int) -> None:
    def build(schema: Schema, member_id: str) -> bytes:
        fields: dict[str, Any] = {} if version < 5 else {"group_instance_id": None, "reason": None}
        protocol = schema.JoinGroupRequestProtocol(name="range", metadata=b"")
        request = schema.JoinGroupRequest(
            group_id=GROUP,
            session_timeout=ms(10_000),
            rebalance_timeout=ms(10_000),
            member_id=member_id,
            protocol_type="consumer",
            protocols=(protocol,),
            **fields,
        )
        return encode_request(7, "c" * 32767, request)[4:]

    schema = request_schema(ApiKey.JOIN_GROUP, version)
    _, answer = decode_response(ApiKey.JOIN_GROUP, version, (await broker.send(build(schema, "")))[4:])
    if answer.error_code == E.MEMBER_ID_REQUIRED:
        frame = await broker.send(build(schema, answer.member_id))
        _, answer = decode_response(ApiKey.JOIN_GROUP, version, frame[4:])
    assert (answer.error_code, answer.generation_id) == (E.NONE, 1)
    assert (await Group(broker).sync(answer, (answer.member_id, b"all"))).assignment == b"all"
