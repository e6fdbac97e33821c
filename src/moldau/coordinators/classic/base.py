"""What a classic group is to others, and what of it lasts: the part that its records tell.

`group.py` has what happens to it.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Self

from moldau.coordinators.classic.events import Join, JoinReply, SyncReply
from moldau.coordinators.classic.members import Member, Members, recorded_member
from moldau.coordinators.classic.records import GroupMetadataKey, GroupMetadataValue
from moldau.coordinators.classic.subscription import CONSUMER_PROTOCOL, topics_of
from moldau.coordinators.group import GroupType
from moldau.errors import ErrorCode, KafkaError, ProtocolError
from moldau.wire.state_records import encode_key, encode_value

BATCH_OVERHEAD_BYTES = 128
"""Around a group's record: the header of its batch and its own, generously."""


class State(Enum):
    """Spelt as DescribeGroups and ListGroups show it."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class GroupBase:
    type = GroupType.CLASSIC

    def __init__(self, group_id: str, timestamp_ms: int | None) -> None:
        self.group_id = group_id
        self.state = State.EMPTY
        self.state_since_ms = timestamp_ms
        """By the wall clock, as its record has it; None for a group whose record is too old to say."""
        self.generation = 0
        self.protocol_type = ""
        """The protocol type of its members; empty in a group that never had any and only stores offsets."""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members = Members()
        self._topics: frozenset[str] | None = frozenset()
        """What the members of this generation read; None when that is not known."""

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def is_empty(self) -> bool:
        return self.state is State.EMPTY

    def empty_since_ms(self) -> int | None:
        return self.state_since_ms if self.is_empty else None

    def is_subscribed_to(self, topic: str) -> bool:
        return not self.is_empty and (self._topics is None or topic in self._topics)

    def tombstones(self) -> list[Any]:
        return [GroupMetadataKey(self.group_id)]

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        knows_epochs: bool = True,
    ) -> None:
        if generation < 0 and self.is_empty:
            return  # a reader outside of any group, or an operator
        if generation >= 0 or member_id or instance_id is not None:
            self.members.validated(member_id, instance_id)
            self.check_generation(generation)
        elif not is_transactional:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "unknown member: the group has active members")
        if not is_transactional and self.state is State.COMPLETING:
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, "the member has no assignment yet")

    def validate_offset_fetch(self, member_id: str, member_epoch: int) -> None:
        """Always allowed: classic groups do not fence readers of offsets."""

    def validate_delete(self) -> None:
        if not self.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"group {self.group_id!r} has members")

    def check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise KafkaError(
                ErrorCode.ILLEGAL_GENERATION,
                f"generation {generation} does not match the group's generation {self.generation}",
            )

    def find_topics(self) -> None:
        self._topics = None
        if self.protocol_type == CONSUMER_PROTOCOL and self.protocol_name is not None:
            try:
                subscriptions = [topics_of(member.metadata(self.protocol_name)) for member in self.members]
                self._topics = frozenset().union(*subscriptions)
            except ProtocolError:
                pass  # a client of its own kind: what it reads is not known

    # -- for members

    def check_protocols(self, request: Join) -> None:
        if self.is_empty:
            fits = bool(request.protocol_type and request.protocols)
        else:
            fits = request.protocol_type == self.protocol_type and self.members.support(request.protocols)
        if not fits:
            names = [name for name, _ in request.protocols]
            raise KafkaError(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
                f"{request.protocol_type!r} with {names} does not match the group's protocol {self.protocol_type!r}",
            )

    def joined(self, member: Member) -> JoinReply:
        name = self.protocol_name or ""
        is_leader = member.member_id == self.leader
        return JoinReply(
            ErrorCode.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            name,
            self.leader or "",
            members=tuple(one.joined(name) for one in self.members) if is_leader else (),
        )

    def assignment(self, member: Member) -> SyncReply:
        return SyncReply(ErrorCode.NONE, self.protocol_type, self.protocol_name, member.assignment)

    # -- the record

    def fits_a_record(self, max_bytes: int) -> bool:
        key, value = encode_key(GroupMetadataKey(self.group_id)), encode_value(self.record())
        return len(key) + len(value) + BATCH_OVERHEAD_BYTES <= max_bytes

    def record(self) -> GroupMetadataValue:
        return GroupMetadataValue(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader,
            current_state_timestamp=-1 if self.state_since_ms is None else self.state_since_ms,
            members=tuple(member.record(self.protocol_name or "") for member in self.members),
        )

    @classmethod
    def of_record(cls, group_id: str, value: GroupMetadataValue) -> Self:
        since_ms = value.current_state_timestamp
        group = cls(group_id, None if since_ms < 0 else since_ms)
        group.generation = value.generation
        group.protocol_type = value.protocol_type
        group.protocol_name = value.protocol
        group.leader = value.leader
        for member in value.members:
            group.members.add(recorded_member(member, value.protocol or ""))
        if group.members:
            group.state = State.STABLE
            group.find_topics()
        return group
