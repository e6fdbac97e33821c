"""What all groups have in common, whatever protocol their members speak."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from moldau.coordinators.effects import Effects
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard


MAX_SUBSCRIPTION_BYTES = 256 * 1024
"""What a member may tell of itself: it is kept as long as the member, and written again with each change."""


def check_size(sizes: Iterable[int]) -> None:
    if sum(sizes) > MAX_SUBSCRIPTION_BYTES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The subscription has more than {MAX_SUBSCRIPTION_BYTES} bytes.")


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
        """When the last member left, by the wall clock; None while there are members, or when it is not known."""

    def tombstones(self) -> list[Any]:
        """The keys of all records that make up this group."""

    def wake(self, shard: GroupShard, key: tuple[Any, ...], now_ms: int) -> Effects:
        """`key` is what the group asked to be woken with: its own id first."""


def check_group_id(group_id: str) -> None:
    if not group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
