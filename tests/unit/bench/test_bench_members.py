"""Members of the bench: what they send in which order, and when their group counts as stable."""

from __future__ import annotations

from typing import Any

import pytest

from bench import group_requests as requests
from bench.jobs.members import ClassicMember, is_stable
from bench.jobs.swarm import Steps
from moldau.errors import ErrorCode
from moldau.wire import messages
from moldau.wire.apis import ApiKey


def member(generation: int, *owned: int) -> ClassicMember:
    each = ClassicMember("group", "topic", 4, 0.0)
    each.generation, each.owned = generation, owned
    return each


@pytest.mark.parametrize(
    ("members", "stable"),
    [
        ([member(1, 0, 1), member(1, 2, 3)], True),
        ([member(1, 0, 1), member(2, 2, 3)], False),
        ([member(1, 0, 1), member(1, 1, 2)], False),
        ([member(1, 0, 1), member(1, 2)], False),
        ([member(1, 0, 1, 2, 3), member(1)], False),
    ],
    ids=["stable", "two generations", "owned twice", "owned by nobody", "one has nothing"],
)
def test_a_group_is_stable_when_all_partitions_have_one_owner_of_one_generation(
    members: list[ClassicMember], stable: bool
) -> None:
    assert is_stable(members, 4) is stable


def joined(code: ErrorCode, member_ids: tuple[str, ...] = ()) -> Any:
    build = messages.response_schema(ApiKey.JOIN_GROUP, 9)
    return build.JoinGroupResponse(
        throttle_time=messages.ms(0),
        error_code=messages.error(code),
        generation_id=7,
        protocol_type="consumer",
        protocol_name="range",
        leader="m-1",
        skip_assignment=False,
        member_id="m-1",
        members=tuple(
            build.JoinGroupResponseMember(member_id=each, group_instance_id=None, metadata=b"") for each in member_ids
        ),
    )


def synced(code: ErrorCode, assignment: bytes) -> Any:
    build = messages.response_schema(ApiKey.SYNC_GROUP, 5)
    return build.SyncGroupResponse(
        throttle_time=messages.ms(0),
        error_code=messages.error(code),
        protocol_type="consumer",
        protocol_name="range",
        assignment=assignment,
    )


def asked(frame: bytes) -> Any:
    header = messages.parse_request_header(frame[4:])
    return messages.decode_request(header.api_key, header.api_version, frame[4 + header.body_offset :])


def answer(steps: Steps, response: Any) -> Any:
    _, frame = steps.send(memoryview(messages.encode_response(1, response)[4:]))
    return asked(frame)


def test_a_classic_member_takes_its_id_and_as_leader_deals_out_all_partitions() -> None:
    each = ClassicMember("group", "topic", 4, 0.0)
    steps = each.join_and_sync()
    _, frame = next(steps)
    assert asked(frame) == requests.join("group", "", "topic")
    again = answer(steps, joined(ErrorCode.MEMBER_ID_REQUIRED))
    assert again == requests.join("group", "m-1", "topic")
    dealt = answer(steps, joined(ErrorCode.NONE, ("m-1", "m-2"))).assignments
    assert {each.member_id: each.assignment for each in dealt} == {
        "m-1": bytes([0, 0, 0, 0, 0, 0, 0, 2]),
        "m-2": bytes([0, 0, 0, 1, 0, 0, 0, 3]),
    }
    rejoined = answer(steps, synced(ErrorCode.REBALANCE_IN_PROGRESS, b""))
    assert rejoined == requests.join("group", "m-1", "topic")
    answer(steps, joined(ErrorCode.NONE, ("m-1",)))
    with pytest.raises(StopIteration):
        answer(steps, synced(ErrorCode.NONE, dealt[0].assignment))
    assert (each.generation, each.owned) == (7, (0, 2))
