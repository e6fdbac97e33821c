"""All kinds of records in `__consumer_offsets`, and who takes each of them up when a shard is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.wire.state_records import StateRecords

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

REPLAY: dict[type, Callable[[GroupShard, Any, Any | None], None]] = {}
"""Key class → how its records change a shard; offsets, which take part in transactions, go another way."""

GROUP_RECORDS = StateRecords({})
