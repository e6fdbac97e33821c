"""Numbers and names that a broker and its clients have to agree on, and that no message schema spells out."""

from __future__ import annotations

from enum import IntEnum

# Timestamps of ListOffsets that are no time.
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6

NO_LEADER = -1

METADATA_TOPIC = "__cluster_metadata"
GROUPS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({GROUPS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})


class ResourceType(IntEnum):
    """What can have a configuration."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class IsolationLevel(IntEnum):
    """What a reader sees of transactions that have not been committed: all of it, or nothing."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class ElectionType(IntEnum):
    PREFERRED = 0
    UNCLEAN = 1
