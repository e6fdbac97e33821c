"""What all groups have in common, whatever protocol their members speak."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from moldau.coordinators.effects import Effects

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard


class GroupType(Enum):
    """Spelt as ListGroups shows it."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class Group(Protocol):
    group_id: str

    @property
    def type(self) -> GroupType: ...

    @property
    def state_name(self) -> str:
        """As ListGroups shows it: Empty, Stable, PreparingRebalance, …"""

    @property
    def protocol_type(self) -> str: ...

    @property
    def is_empty(self) -> bool:
        """No members: it may be deleted, and its offsets may expire."""

    def validate_offset_commit(
        self,
        member_id: str,
        instance_id: str | None,
        generation: int,
        *,
        is_transactional: bool,
        knows_epochs: bool = True,
    ) -> None:
        """KafkaError unless this member may commit; `generation` is the member epoch in newer protocols, which the
        client's version of the request may not know."""

    def validate_offset_fetch(self, member_id: str, member_epoch: int) -> None: ...

    def validate_delete(self) -> None: ...

    def is_subscribed_to(self, topic: str) -> bool:
        """Offsets of such a topic neither expire nor can be deleted."""

    def empty_since_ms(self) -> int | None:
        """When the last member left; None while there are members, or when it is not known."""

    def tombstones(self) -> list[Any]:
        """The keys of all records that make up this group."""

    def wake(self, shard: GroupShard, key: tuple[Any, ...], now_ms: int) -> Effects:
        """`key` is what the group asked to be woken with: its own id first."""
