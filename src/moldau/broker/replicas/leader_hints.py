"""The new leader in a NOT_LEADER response, so that the client need not ask for metadata first (KIP-951)."""

from __future__ import annotations

from collections.abc import Iterable

from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.network.request import RequestContext
from moldau.errors import ErrorCode
from moldau.wire.primitives import NodeEndpoint

_HINTED = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})

Hint = tuple[int, int]
"""Leader id, leader epoch."""


def leader_hint(
    metadata: MetadataCache, code: ErrorCode, name: str | None, topic_id: bytes | None, index: int
) -> Hint | None:
    """The leader as the newest metadata has it, where `code` sends the client away."""
    if code not in _HINTED:
        return None
    topic = metadata.image.topics.get(name or "") if topic_id is None else metadata.image.topic_by_id(topic_id)
    partition = topic.partition(index) if topic is not None else None
    return None if partition is None else (partition.leader, partition.leader_epoch)


def hinted_endpoints(
    metadata: MetadataCache, context: RequestContext, hints: Iterable[Hint | None]
) -> list[NodeEndpoint]:
    """Where the leaders of `hints` are."""
    leaders = {hint[0] for hint in hints if hint is not None}
    if not leaders:
        return []
    return [one for one in metadata.endpoints(context.connection.listener) if one[0] in leaders]
