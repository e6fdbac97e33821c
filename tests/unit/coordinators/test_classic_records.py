"""The record of a classic group as Apache Kafka writes it, and what members' subscriptions tell the broker."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.coordinators.classic.records import KINDS, GroupMetadataKey, GroupMetadataValue, MemberMetadata
from moldau.coordinators.classic.subscription import topics_of
from moldau.errors import ProtocolError
from moldau.wire.state_records import StateRecords, _encode, encode_key, encode_value
from tests.unit.coordinators.classic_lab import subscription

KEY = GroupMetadataKey("g")
VALUE = GroupMetadataValue(
    protocol_type="consumer",
    generation=3,
    protocol="range",
    leader="m",
    current_state_timestamp=5,
    members=(
        MemberMetadata(
            member_id="m",
            group_instance_id="i",
            client_id="c",
            client_host="/h",
            rebalance_timeout=7,
            session_timeout=9,
            subscription=b"s",
            assignment=b"a",
        ),
    ),
)


def test_a_group_is_written_byte_for_byte_as_in_kafka() -> None:
    assert encode_key(KEY) == bytes.fromhex("0002 0001 67")
    assert encode_value(VALUE) == bytes.fromhex(
        "0003"  # the version that Kafka 4.2 writes
        "0008 636f6e73756d6572"
        "00000003"
        "0005 72616e6765"
        "0001 6d"
        "0000000000000005"
        "00000001"
        "0001 6d 0001 69 0001 63 0002 2f68 00000007 00000009 00000001 73 00000001 61"
    )


@pytest.mark.parametrize("version", range(5))
def test_every_version_of_a_group_can_be_read(version: int) -> None:
    _, read = StateRecords(KINDS).decode(encode_key(KEY), _encode(VALUE, version)) or (None, None)
    assert isinstance(read, GroupMetadataValue)
    assert (read.generation, read.protocol, read.leader) == (3, "range", "m")
    assert read.current_state_timestamp == (5 if version >= 2 else -1)
    (member,) = read.members
    assert member.group_instance_id == ("i" if version >= 3 else None)
    assert member.rebalance_timeout == (7 if version >= 1 else -1)
    assert (member.subscription, member.assignment) == (b"s", b"a")


def test_topics_are_found_in_subscriptions_of_any_version() -> None:
    assert topics_of(subscription()) == set()
    assert topics_of(subscription("a", "b", "a")) == {"a", "b"}


@given(data=st.binary(max_size=40))
def test_what_is_no_subscription_is_refused_and_nothing_else_happens(data: bytes) -> None:
    try:
        topics = topics_of(data)
    except ProtocolError:
        return
    assert sum(2 + len(topic.encode()) for topic in topics) <= len(data)


@pytest.mark.parametrize("cut", range(1, len(subscription("topic")) - len(b"whatever newer versions add")))
def test_a_cut_subscription_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolError):
        topics_of(subscription("topic")[:cut])
