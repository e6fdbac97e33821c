"""What one partition of `__consumer_offsets` holds: groups of every protocol, and the offsets they committed.

A group id belongs to one group, whatever its type. The events themselves are functions beside the group they change
(`classic`, `consumer`, `share`, `offsets`); this is the roof they share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.config.broker import BrokerConfig
from moldau.coordinators.effects import Effects
from moldau.coordinators.group import Group
from moldau.coordinators.group_kinds import REPLAY
from moldau.coordinators.topics import Topics


class GroupShard:
    def __init__(self, config: Callable[[], BrokerConfig], topics: Topics) -> None:
        self._config = config
        self.topics = topics
        self.groups: dict[str, Group] = {}

    @property
    def config(self) -> BrokerConfig:
        """As it is now: some of its keys can be changed while the broker runs."""
        return self._config()

    def wake(self, key: tuple[Any, ...], now_ms: int) -> Effects:
        group = self.groups.get(key[0])
        return group.wake(self, key, now_ms) if group is not None else Effects()

    def topics_changed(self, now_ms: int) -> Effects:
        """Topics were created, deleted, or got more partitions."""
        return Effects()

    # -- loading

    def replay(self, key: Any, value: Any | None, *, offset: int, timestamp_ms: int, producer_id: int = -1) -> None:
        REPLAY[type(key)](self, key, value)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """A transaction that committed offsets here has ended."""

    def loaded(self, now_ms: int) -> Effects:
        return Effects()
