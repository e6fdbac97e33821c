"""What events do to a consumer group, whichever protocol they came by: each change is a record, written and applied.

`heartbeat` (members of the consumer protocol) and `migration` (those of the classic one) are made of these.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moldau.coordinators.consumer.assignors import ASSIGNORS, Partitions, Subscriber
from moldau.coordinators.consumer.group import REPLAY, ConsumerGroup, topic_ids
from moldau.coordinators.consumer.member import Member, MemberState, reconcile, to_topic_partitions
from moldau.coordinators.consumer.records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from moldau.coordinators.effects import Effects
from moldau.errors import InvalidRegexError
from moldau.wire.re2 import MAX_WORK, compile_regex

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard


REGEXES_PER_STEP_MAX = 4
"""Each of them has its part of the work that is allowed, which has to be enough for what people write."""
NAMES_PER_STEP_MAX = 10_000
"""Topics that a step matches with regular expressions: some 10 ms."""


class Step:
    """One event on its way through a group."""

    def __init__(self, shard: GroupShard, group: ConsumerGroup, now_ms: int) -> None:
        self.shard = shard
        self.group = group
        self.now_ms = now_ms
        self.effects = Effects()

    def write(self, key: Any, value: Any | None) -> None:
        self.effects.record(key, value)
        REPLAY[type(key)](self.shard, key, value)

    # -- members

    def put_metadata(self, member: Member) -> None:
        self.write(ConsumerGroupMemberMetadataKey(self.group.group_id, member.member_id), member.metadata())

    def put_target(self, member_id: str, partitions: Partitions) -> None:
        self.write(
            ConsumerGroupTargetAssignmentMemberKey(self.group.group_id, member_id),
            ConsumerGroupTargetAssignmentMemberValue(topic_partitions=to_topic_partitions(partitions)),
        )

    def put_assignment(self, member: Member) -> None:
        self.write(ConsumerGroupCurrentMemberAssignmentKey(self.group.group_id, member.member_id), member.assignment())

    def remove_member(self, member_id: str) -> None:
        self.write(ConsumerGroupCurrentMemberAssignmentKey(self.group.group_id, member_id), None)
        self.write(ConsumerGroupTargetAssignmentMemberKey(self.group.group_id, member_id), None)
        self.write(ConsumerGroupMemberMetadataKey(self.group.group_id, member_id), None)
        for deadline in [one for one in self.group.deadlines if one[1] == member_id]:
            del self.group.deadlines[deadline]

    def replace_static_member(self, member: Member, member_id: str) -> Member:
        """The same instance under a new member id: it takes over all that the old one had."""
        target = self.group.targets.get(member.member_id, {})
        self.remove_member(member.member_id)
        renamed = replace(member, member_id=member_id, epoch=0, previous_epoch=0)
        self.put_metadata(renamed)
        self.put_target(member_id, target)
        self.put_assignment(renamed)
        return renamed

    # -- subscriptions and the epoch of the group

    def update_member(self, before: Member, after: Member) -> bool:
        """Writes what the member tells, and bumps the epoch if that matters; whether its subscription changed."""
        group = self.group
        if after != before or after.member_id not in group.members:
            self.put_metadata(after)
        names_changed = after.subscribed_topic_names != before.subscribed_topic_names
        regex_changed = (after.subscribed_topic_regex or "") != (before.subscribed_topic_regex or "")
        bump = group.epoch == 0 or names_changed or regex_changed
        if group.may_have_changed_topics:
            group.stale_regexes.update(group.regexes())
        if regex_changed or group.stale_regexes:
            bump = self.resolve_regexes() or bump
        if bump or group.may_have_changed_topics:
            self.bump_epoch(only_if_topics_changed=not bump)
        return names_changed or regex_changed

    def resolve_regexes(self) -> bool:
        """The topics of the regular expressions that members are subscribed to; whether any changed.

        New ones come first; of many that are stale some wait for the next heartbeats.
        """
        group = self.group
        subscribed = group.regexes()
        changed = False
        for regex in [one for one in group.resolved if one not in subscribed]:
            self.write(ConsumerGroupRegularExpressionKey(group.group_id, regex), None)
            changed = True
        group.stale_regexes &= subscribed.keys()
        due = [one for one in subscribed if one not in group.resolved]
        due += [one for one in group.stale_regexes if one in group.resolved]
        names = list(self.shard.topics.names())
        timestamp_ms = self.shard.wall_clock()
        due = due[: min(REGEXES_PER_STEP_MAX, max(1, NAMES_PER_STEP_MAX // max(1, len(names))))]
        group.stale_regexes.difference_update(due)
        for regex in due:
            known = group.resolved.get(regex)
            try:
                topics = compile_regex(regex).filter(names, MAX_WORK // len(due))
            except InvalidRegexError:  # it takes too long with all these topics, or another broker took it for one
                topics = known.topics if known is not None else frozenset()
            if known is None or topics != known.topics:
                self.write(
                    ConsumerGroupRegularExpressionKey(group.group_id, regex),
                    ConsumerGroupRegularExpressionValue(
                        topics=tuple(sorted(topics)), version=0, timestamp=timestamp_ms
                    ),
                )
                changed = True
        return changed

    def bump_epoch(self, *, only_if_topics_changed: bool = False) -> None:
        group = self.group
        metadata_hash = group.compute_metadata_hash(self.shard.topics)
        group.may_have_changed_topics = False
        if only_if_topics_changed and metadata_hash == group.metadata_hash:
            return
        self.write(
            ConsumerGroupMetadataKey(group.group_id),
            ConsumerGroupMetadataValue(epoch=group.epoch + 1, metadata_hash=metadata_hash),
        )
        if group.has_partition_metadata:
            self.write(ConsumerGroupPartitionMetadataKey(group.group_id), None)

    # -- the target, and the way to it

    def update_target(self) -> None:
        """A target for the group epoch, if there is none yet; only what changed is written."""
        group, topics = self.group, self.shard.topics
        if group.epoch <= group.target_epoch:
            return
        ids = {names: topic_ids(names, topics) for names in set(map(group.topics_of, group.members.values()))}
        counts = {
            topic_id: topics.partition_count(name) or 0
            for name in group.subscribed_topic_names()
            if (topic_id := topics.topic_id(name)) is not None
        }
        subscribers = [
            Subscriber(
                member.member_id,
                member.instance_id,
                ids[group.topics_of(member)],
                group.targets.get(member.member_id, {}),
            )
            for member in group.members.values()
        ]
        assignor = group.preferred_assignor(self.shard.config.group_consumer_assignors[0])
        for member_id, partitions in ASSIGNORS[assignor](counts, subscribers).items():
            before = group.targets.get(member_id)
            if partitions is not before and partitions != before:
                self.put_target(member_id, partitions)
        self.write(
            ConsumerGroupTargetAssignmentMetadataKey(group.group_id),
            ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=group.epoch),
        )

    def reconcile(self, member: Member, owned: Partitions | None, *, has_subscription_changed: bool) -> Member:
        group = self.group
        if member.is_reconciled_to(group.target_epoch) and not has_subscription_changed:
            return member
        target = group.target_of(member, self.shard.topics)
        after = reconcile(member, target, owned, has_subscription_changed=has_subscription_changed)
        if after != member:
            self.put_assignment(after)
            if after.state is MemberState.UNREVOKED_PARTITIONS and not after.uses_classic_protocol:
                self.start_timeout("rebalance", after.member_id, after.rebalance_timeout_ms)
            else:
                group.deadlines.pop(("rebalance", after.member_id), None)
        return after

    # -- deadlines

    def start_timeout(self, what: str, member_id: str, timeout_ms: int) -> None:
        """Fences the member unless this is called again, or the deadline goes, within this time."""
        self.group.deadlines[what, member_id] = self.now_ms + timeout_ms
        self.wake(what, member_id)

    def expect_session(self, member: Member) -> None:
        self.start_timeout("session", member.member_id, self.session_timeout_ms(member))

    def session_timeout_ms(self, member: Member) -> int:
        if member.classic is not None:
            return member.classic.session_timeout_ms
        return self.shard.group_config(self.group.group_id).consumer_session_timeout_ms

    def wake(self, what: str, member_id: str) -> None:
        at_ms = self.group.deadlines[what, member_id]
        armed_ms = self.group.armed.get((what, member_id))
        if armed_ms is None or at_ms < armed_ms:
            self.group.armed[what, member_id] = at_ms
            self.effects.wake(at_ms, (self.group.group_id, what, member_id))
