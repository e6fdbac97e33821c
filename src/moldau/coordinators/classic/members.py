"""The members of a classic group: who they are, which static names they hold, and which protocol they all know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from moldau.coordinators.classic.events import Join, JoinedMember, Protocols
from moldau.coordinators.classic.records import MemberMetadata
from moldau.errors import ErrorCode, KafkaError

NEVER_MS = 1 << 62
"""A deadline that is none."""


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    """It does not have its member id yet, so it cannot send heartbeats."""
    deadline_ms: int = NEVER_MS
    """When it is removed from the group, unless it sends something before."""

    def extend_session(self, now_ms: int) -> None:
        """Only ever later: a member that waits has more time than its session."""
        self.deadline_ms = max(self.deadline_ms, now_ms + self.session_timeout_ms)

    def metadata(self, protocol_name: str) -> bytes:
        return next(metadata for name, metadata in self.protocols if name == protocol_name)

    def joined(self, protocol_name: str) -> JoinedMember:
        return JoinedMember(self.member_id, self.instance_id, self.metadata(protocol_name))

    def record(self, protocol_name: str) -> MemberMetadata:
        return MemberMetadata(
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=self.assignment,
        )


def new_member(request: Join, member_id: str) -> Member:
    return Member(
        member_id,
        request.instance_id,
        request.client_id,
        request.client_host,
        request.session_timeout_ms,
        request.rebalance_timeout_ms,
        request.protocols,
        is_new=True,
    )


def recorded_member(record: MemberMetadata, protocol_name: str) -> Member:
    """As far as the record tells: of its protocols only the elected one is known."""
    return Member(
        record.member_id,
        record.group_instance_id,
        record.client_id,
        record.client_host,
        record.session_timeout,
        record.session_timeout if record.rebalance_timeout < 0 else record.rebalance_timeout,
        ((protocol_name, record.subscription),),
        record.assignment,
    )


class Members:
    """In the order they came.

    At least one protocol is known to all members, always: who shares none with the others is not let in.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Member] = {}
        self._by_instance: dict[str, str] = {}
        self._knowing: Counter[str] = Counter()
        """How many members know a protocol."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    @property
    def ids(self) -> list[str]:
        return list(self._by_id)

    @property
    def rebalance_timeout_ms(self) -> int:
        """Everyone gets the time that the slowest asked for."""
        return max((member.rebalance_timeout_ms for member in self._by_id.values()), default=0)

    def __getitem__(self, member_id: str) -> Member:
        return self._by_id[member_id]

    def member_of(self, instance_id: str) -> str | None:
        """The member id that a static member has now."""
        return self._by_instance.get(instance_id)

    def validated(self, member_id: str, instance_id: str | None) -> Member:
        """The member, if it is one; a static member whose place another process took is fenced."""
        if instance_id is not None:
            current = self._by_instance.get(instance_id)
            if current is not None and current != member_id:
                raise KafkaError(
                    ErrorCode.FENCED_INSTANCE_ID, f"static member {instance_id!r} now has the member id {current!r}"
                )
            if current is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown static member {instance_id!r}")
        member = self._by_id.get(member_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"unknown member {member_id!r}")
        return member

    def add(self, member: Member) -> None:
        self._by_id[member.member_id] = member
        if member.instance_id is not None:
            self._by_instance[member.instance_id] = member.member_id
        self._knowing.update({name for name, _ in member.protocols})

    def remove(self, member_id: str) -> None:
        member = self._by_id.pop(member_id)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        self._forget(member.protocols)

    def update(self, member: Member, request: Join) -> None:
        self._forget(member.protocols)
        member.protocols = request.protocols
        self._knowing.update({name for name, _ in member.protocols})
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = request.rebalance_timeout_ms

    def _forget(self, protocols: Protocols) -> None:
        self._knowing.subtract({name for name, _ in protocols})
        self._knowing += Counter()  # drops the names that no member knows any more

    # -- the protocol

    def support(self, protocols: Protocols) -> bool:
        """Whether all members know one of these."""
        return any(self._knowing[name] == len(self._by_id) for name, _ in protocols)

    def elect_protocol(self) -> str:
        """Each member votes for the one it likes best among those that all know; the first of the most voted wins."""
        votes = Counter(self._vote(member) for member in self._by_id.values())
        return votes.most_common(1)[0][0]

    def _vote(self, member: Member) -> str:
        return next(name for name, _ in member.protocols if self._knowing[name] == len(self._by_id))
