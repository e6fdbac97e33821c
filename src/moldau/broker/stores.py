"""Which store keeps a cluster's metadata: the configuration says."""

from __future__ import annotations

from moldau.config.broker import BrokerConfig
from moldau.metadata.shared_store import SharedStore
from moldau.metadata.store import MetadataStore


def make_store(config: BrokerConfig) -> MetadataStore:
    if config.zookeeper_connect:
        from moldau.metadata.zookeeper_store import ZooKeeperStore  # for those who have an ensemble

        return ZooKeeperStore(
            config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            connection_timeout_ms=config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms,
        )
    assert config.moldau_metadata_dir is not None
    return SharedStore(config.moldau_metadata_dir, session_timeout_ms=config.broker_session_timeout_ms)
