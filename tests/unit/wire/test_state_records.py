"""Records of the state topics: the bytes are Apache Kafka's own, written by its generated classes (4.3.1)."""

from __future__ import annotations

import contextlib
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.offsets.records import KINDS, OffsetCommitKey, OffsetCommitValue
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.state_records import (
    BYTES,
    INT8,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID_TYPE,
    StateRecords,
    array_of,
    encode_key,
    encode_value,
    state_key,
    state_struct,
    state_value,
    struct_of,
    wire,
)

OFFSETS = StateRecords(KINDS)
KEY = OffsetCommitKey("group", "töpic", 7)
KEY_BYTES = bytes.fromhex("0001000567726f7570000674c3b670696300000007")
OFFSET = 1234567890123
COMMITTED_MS = 1700000000000


@state_struct
class ClassicProtocol:
    name: str = wire(STRING)
    metadata: bytes = wire(BYTES)


@state_struct
class ClassicMember:
    session_timeout_ms: int = wire(INT32)
    supported_protocols: tuple[ClassicProtocol, ...] = wire(array_of(ClassicProtocol))


@state_value(versions=(0, 0), flexible_from=0, written=0)
class Member:
    """ConsumerGroupMemberMetadataValue: every kind of flexible field, and a nullable structure in a tag."""

    instance_id: str | None = wire(NULLABLE_STRING)
    rack_id: str | None = wire(NULLABLE_STRING)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    topics: tuple[str, ...] = wire(array_of(STRING))
    regex: str | None = wire(NULLABLE_STRING)
    rebalance_timeout_ms: int = wire(INT32)
    server_assignor: str | None = wire(NULLABLE_STRING)
    classic: ClassicMember | None = wire(struct_of(ClassicMember, nullable=True), tag=0, default=None)


@state_key(kind=5)
class MemberKey:
    group: str = wire(STRING)


@state_struct
class Partitions:
    topic_id: uuid.UUID = wire(UUID_TYPE)
    partitions: tuple[int, ...] = wire(array_of(INT32))


@state_value(versions=(0, 0), flexible_from=0, written=0)
class Assignment:
    """ConsumerGroupCurrentMemberAssignmentValue: arrays of structures."""

    epoch: int = wire(INT32)
    previous_epoch: int = wire(INT32)
    state: int = wire(INT8)
    assigned: tuple[Partitions, ...] = wire(array_of(Partitions))
    pending: tuple[Partitions, ...] = wire(array_of(Partitions))


@state_key(kind=8)
class AssignmentKey:
    group: str = wire(STRING)


@state_struct
class GroupMember:
    member_id: str = wire(STRING)
    instance_id: str | None = wire(NULLABLE_STRING, since=3, default=None)
    client_id: str = wire(STRING)
    client_host: str = wire(STRING)
    rebalance_timeout: int = wire(INT32, since=1, default=-1)
    session_timeout: int = wire(INT32)
    subscription: bytes = wire(BYTES)
    assignment: bytes = wire(BYTES)


def group_value(version: int) -> type:
    @state_value(versions=(0, 4), flexible_from=4, written=version)
    class Group:
        """GroupMetadataValue: structures whose fields came with later versions."""

        protocol_type: str = wire(STRING)
        generation: int = wire(INT32)
        protocol: str | None = wire(NULLABLE_STRING)
        leader: str | None = wire(NULLABLE_STRING)
        state_timestamp: int = wire(INT64, since=2, default=-1)
        members: tuple[GroupMember, ...] = wire(array_of(GroupMember))

    return Group


def test_a_key_of_a_committed_offset_is_kafkas() -> None:
    assert encode_key(KEY) == KEY_BYTES
    assert OFFSETS.decode(KEY_BYTES, None) == (KEY, None)


@pytest.mark.parametrize(
    ("data", "changes"),
    [
        ("00000000011f71fb04cb00036dc3a90000018bcfe56800", {}),
        (
            "00010000011f71fb04cb00036dc3a90000018bcfe568000000018bcfe65260",
            {"expire_timestamp": COMMITTED_MS + 60_000},
        ),
        ("00020000011f71fb04cb00036dc3a90000018bcfe56800", {}),
        ("00030000011f71fb04cb0000000500036dc3a90000018bcfe56800", {"leader_epoch": 5}),
        ("00040000011f71fb04cb00000005046dc3a90000018bcfe5680000", {"leader_epoch": 5}),
        (
            "00040000011f71fb04cb00000005046dc3a90000018bcfe568000100100102030405060708090a0b0c0d0e0f10",
            {"leader_epoch": 5, "topic_id": uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")},
        ),
    ],
)
def test_committed_offsets_of_every_version_are_read(data: str, changes: dict[str, object]) -> None:
    fields: dict[str, object] = {"offset": OFFSET, "metadata": "mé", "commit_timestamp": COMMITTED_MS}
    value = OffsetCommitValue(**(fields | changes))  # type: ignore[arg-type]
    assert OFFSETS.decode(KEY_BYTES, bytes.fromhex(data)) == (KEY, value)
    if data[:4] in ("0001", "0004"):
        assert encode_value(value).hex() == data


def test_a_long_text_has_a_length_of_two_bytes() -> None:
    value = OffsetCommitValue(offset=-1, metadata="x" * 200, commit_timestamp=0)
    assert encode_value(value).hex() == "0004ffffffffffffffffffffffffc901" + "78" * 200 + "00" * 9


@pytest.mark.parametrize(
    "data",
    [
        "00000008636f6e73756d657200000003ffffffff0000000100016d0001630001680000000200000002010200000000",
        "00010008636f6e73756d657200000003ffffffff0000000100016d000163000168000000010000000200000002010200000000",
        "00020008636f6e73756d657200000003ffffffff000000000000004d0000000100016d000163000168000000010000000200000002010200000000",
        "00030008636f6e73756d657200000003ffffffff000000000000004d0000000100016dffff000163000168000000010000000200000002010200000000",
        "000409636f6e73756d6572000000030000000000000000004d02026d00026302680000000100000002030102010000",
    ],
)
def test_structures_have_the_fields_of_the_values_version(data: str) -> None:
    version = int(data[:4])
    cls = group_value(version)
    member = GroupMember(
        member_id="m",
        client_id="c",
        client_host="h",
        rebalance_timeout=1 if version >= 1 else -1,
        session_timeout=2,
        subscription=b"\1\2",
        assignment=b"",
    )
    group = cls(
        protocol_type="consumer",
        generation=3,
        protocol=None,
        leader=None,
        state_timestamp=77 if version >= 2 else -1,
        members=(member,),
    )
    assert encode_value(group).hex() == data
    assert StateRecords({MemberKey: cls}).decode(encode_key(MemberKey("g")), bytes.fromhex(data)) == (
        MemberKey("g"),
        group,
    )


@pytest.mark.parametrize(
    ("data", "classic"),
    [
        (
            "000000027202630268030261026204782e2a0000000900010010010000afc8020672616e676502090000",
            ClassicMember(
                session_timeout_ms=45_000, supported_protocols=(ClassicProtocol(name="range", metadata=b"\x09"),)
            ),
        ),
        ("000000027202630268030261026204782e2a000000090001000100", None),
    ],
)
def test_a_nullable_structure_in_a_tag_is_written_even_when_it_is_null(
    data: str, classic: ClassicMember | None
) -> None:
    member = Member(
        instance_id=None,
        rack_id="r",
        client_id="c",
        client_host="h",
        topics=("a", "b"),
        regex="x.*",
        rebalance_timeout_ms=9,
        server_assignor=None,
        classic=classic,
    )
    assert encode_value(member).hex() == data
    assert StateRecords({MemberKey: Member}).decode(b"\0\5\0\1g", bytes.fromhex(data)) == (MemberKey("g"), member)


def test_arrays_of_structures_are_kafkas() -> None:
    data = "00000000000200000001010200000000000000010000000000000002030000000000000003000100"
    partitions = Partitions(topic_id=uuid.UUID(int=(1 << 64) + 2), partitions=(0, 3))
    value = Assignment(epoch=2, previous_epoch=1, state=1, assigned=(partitions,), pending=())
    assert encode_value(value).hex() == data
    assert StateRecords({AssignmentKey: Assignment}).decode(b"\0\x08\0\1g", bytes.fromhex(data)) == (
        AssignmentKey("g"),
        value,
    )


def test_a_kind_that_is_not_known_is_passed_over() -> None:
    assert OFFSETS.decode(b"\0\x63whatever", b"\0\0") is None


def test_a_tag_that_is_not_known_is_passed_over() -> None:
    data = bytes.fromhex("00040000011f71fb04cb00000005046dc3a90000018bcfe56800" + "01" + "0703616263")
    decoded = OFFSETS.decode(KEY_BYTES, data)
    assert decoded is not None
    assert decoded[1].leader_epoch == 5


def test_a_version_that_is_not_known_is_an_error() -> None:
    with pytest.raises(KafkaError) as raised:
        OFFSETS.decode(KEY_BYTES, b"\0\x05" + bytes(40))
    assert raised.value.code is ErrorCode.CORRUPT_MESSAGE


def test_what_does_not_fit_the_format_is_refused() -> None:
    with pytest.raises(KafkaError):
        encode_key(OffsetCommitKey("g" * 40_000, "t", 0))


VALUES = st.builds(
    OffsetCommitValue,
    offset=st.integers(-1, 2**63 - 1),
    leader_epoch=st.integers(-1, 2**31 - 1),
    metadata=st.text(max_size=300),
    commit_timestamp=st.integers(0, 2**62),
    topic_id=st.uuids(),
)


@given(VALUES)
def test_what_is_written_is_read_back(value: OffsetCommitValue) -> None:
    assert OFFSETS.decode(KEY_BYTES, encode_value(value)) == (KEY, value)


@given(VALUES, st.data())
def test_cut_or_changed_bytes_are_an_error_or_another_value_and_nothing_else(
    value: OffsetCommitValue, data: st.DataObject
) -> None:
    encoded = bytearray(encode_value(value))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] = data.draw(st.integers(0, 255))
    for damaged in (bytes(encoded), bytes(encoded[:place])):
        with contextlib.suppress(KafkaError):
            assert OFFSETS.decode(KEY_BYTES, damaged) is not None
