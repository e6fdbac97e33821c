"""Between the classic and the consumer protocol. (Grows.)"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.coordinators.consumer.group import ConsumerGroup
from moldau.coordinators.consumer.member import Member
from moldau.coordinators.consumer.step import Step
from moldau.coordinators.group import Group
from moldau.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard


def upgraded(shard: GroupShard, group: Group) -> ConsumerGroup:
    """The consumer group that a member's joining makes of `group`; GROUP_ID_NOT_FOUND if it must not."""
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group.group_id} is not a consumer group.")


def begin(step: Step) -> None:
    """Puts a group that is new into the shard."""
    step.shard.groups[step.group.group_id] = step.group


def fence(step: Step, members: list[Member]) -> None:
    """Puts members out of their group."""
    for member in members:
        step.remove_member(member.member_id)
    step.resolve_regexes()
    step.bump_epoch()
