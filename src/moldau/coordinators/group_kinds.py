"""All kinds of records in `__consumer_offsets`, and who takes each of them up when a shard is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moldau.coordinators.classic import records as classic_records
from moldau.coordinators.classic import steps as classic
from moldau.coordinators.consumer import group as consumer
from moldau.coordinators.consumer import records as consumer_records
from moldau.coordinators.offsets import records as offset_records
from moldau.coordinators.share import group as share
from moldau.coordinators.share import records as share_records
from moldau.wire.state_records import StateRecords

if TYPE_CHECKING:
    from moldau.coordinators.group_shard import GroupShard

REPLAY: dict[type, Callable[[GroupShard, Any, Any | None], None]] = {
    **classic.REPLAY,
    **consumer.REPLAY,
    **share.REPLAY,
}
"""Key class → how its records change a shard; offsets, which take part in transactions, go another way."""

GROUP_RECORDS = StateRecords(
    {**offset_records.KINDS, **classic_records.KINDS, **consumer_records.KINDS, **share_records.KINDS}
)
