"""What one partition of `__consumer_offsets` holds: groups of every protocol, and the offsets they committed.

A group id belongs to one group, whatever its type. The events themselves are functions beside the group they change
(`classic`, `consumer`, `share`, `offsets`); this is the roof they share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.config.group import GroupConfig
from moldau.coordinators.classic import steps as classic
from moldau.coordinators.classic.group import ClassicGroup
from moldau.coordinators.consumer import heartbeat as consumer
from moldau.coordinators.effects import Effects
from moldau.coordinators.group import Group
from moldau.coordinators.group_kinds import REPLAY
from moldau.coordinators.offsets.cleanup import EXPIRE, Expiry, delete_offsets_of_deleted_topics
from moldau.coordinators.offsets.records import OffsetCommitKey
from moldau.coordinators.offsets.table import OffsetTable
from moldau.coordinators.share import heartbeat as share
from moldau.coordinators.topics import Topics


class GroupShard:
    def __init__(
        self,
        config: Callable[[], BrokerConfig],
        topics: Topics,
        overrides: Callable[[str], Mapping[str, str]] = lambda _: {},
        *,
        wall_clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._overrides = overrides
        self.topics = topics
        self.wall_clock = wall_clock
        """For what goes into records. The `now_ms` of a step is another clock, for deadlines."""
        self.groups: dict[str, Group] = {}
        self.offsets = OffsetTable()
        self._expiry = Expiry()

    @property
    def config(self) -> BrokerConfig:
        """As it is now: some of its keys can be changed while the broker runs."""
        return self._config()

    def group_config(self, group_id: str) -> GroupConfig:
        """What is in force for one group: its own keys over the broker's."""
        return GroupConfig.resolve(self._overrides(group_id), self.config)

    def wake(self, key: tuple[Any, ...], now_ms: int) -> Effects:
        if key == EXPIRE:
            return self._expiry.wake(self, now_ms)
        group = self.groups.get(key[0])
        return group.wake(self, key, now_ms) if group is not None else Effects()

    def topics_changed(self, now_ms: int) -> Effects:
        """Topics were created, deleted, or got more partitions."""
        consumer.topics_changed(self)
        effects = delete_offsets_of_deleted_topics(self)
        effects.merge(share.topics_changed(self))
        return effects

    # -- loading

    def replay(self, key: Any, value: Any | None, *, offset: int, timestamp_ms: int, producer_id: int = -1) -> None:
        if type(key) is OffsetCommitKey:
            self.offsets.apply(key, value, producer_id)
        else:
            REPLAY[type(key)](self, key, value)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """A transaction that committed offsets here has ended."""
        self.offsets.complete(producer_id, committed)

    def loaded(self, now_ms: int) -> Effects:
        effects = delete_offsets_of_deleted_topics(
            self
        )  # some may have been deleted before this broker was the coordinator
        effects.merge(classic.loaded(self, now_ms))
        effects.merge(consumer.loaded(self, now_ms))
        effects.merge(share.loaded(self, now_ms))
        for group_id in self.offsets.groups() - self.groups.keys():
            # Offsets without a group's records are those of a simple group.
            self.groups[group_id] = ClassicGroup(group_id, None)
        self._expiry.schedule(effects, now_ms + self.config.offsets_retention_check_interval_ms)
        return effects
