"""What comes to a classic group from its members, and what they get back."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from moldau.errors import ErrorCode

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""The ways to assign that a member knows, with its metadata for each; the one it likes best comes first."""


class Join(NamedTuple):
    group_id: str
    member_id: str
    """Empty: the broker is to give one."""
    new_member_id: str
    """The one to give: random, so it comes from outside."""
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_member_id: bool = True
    """A new member has to come back with the id it was given, so that a lost answer leaves no dead member behind
    (JoinGroup 4 and later)."""
    can_skip_assignment: bool = True
    """A static leader that restarts understands that nothing has to be assigned (JoinGroup 9 and later)."""


class Sync(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    """None where the request does not say."""
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]
    """From the leader: member id and assignment."""


class Heartbeat(NamedTuple):
    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class Leaver(NamedTuple):
    member_id: str
    """Empty: an operator removes a static member by its instance id."""
    instance_id: str | None


class Leave(NamedTuple):
    group_id: str
    leavers: tuple[Leaver, ...]


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinReply(NamedTuple):
    error: ErrorCode
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()
    """For the leader, who assigns: everybody, with their metadata."""


class SyncReply(NamedTuple):
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


LeaveReply: TypeAlias = tuple[ErrorCode, ...]
"""One for each leaver."""
