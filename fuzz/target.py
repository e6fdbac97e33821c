"""A broker made ready to be attacked: topics whose records it has to look into, and what it serves."""

from __future__ import annotations

from fuzz.requests import Target
from moldau.client.admin import create_topic
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig, parse_servers
from moldau.wire.apis import APIS

# Where a plain topic takes a batch as it is, these make the broker decode, recompress or stamp it.
_TOPICS: dict[str, dict[str, str]] = {
    "fuzz-plain": {},
    "fuzz-recompressed": {"compression.type": "gzip"},
    "fuzz-compacted": {"cleanup.policy": "compact"},
    "fuzz-append-time": {"message.timestamp.type": "LogAppendTime"},
    "fuzz-bounded-time": {"message.timestamp.before.max.ms": "1000"},
}


def prepare(bootstrap: str) -> Target:
    with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:
        create_topic(cluster, "fuzz-doomed")
        return Target(
            [(name, create_topic(cluster, name, partitions=3, configs=configs)) for name, configs in _TOPICS.items()],
            "fuzz-doomed",
        )


def served_versions(bootstrap: str) -> list[tuple[int, int]]:
    """Every API key with every version that the broker announces."""
    with ClusterClient(ClientConfig(parse_servers(bootstrap))) as cluster:
        ranges = cluster.any_broker().versions
        # Produce is announced from version 0 on, for old clients' sake, but served, and described, from 3.
        return [
            (key, version)
            for key, (_, highest) in ranges.items()
            for version in range(APIS[key].min_version, highest + 1)
        ]
