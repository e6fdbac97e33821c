"""Which store keeps a cluster's metadata: the configuration says."""

from __future__ import annotations

from moldau.config.broker import BrokerConfig
from moldau.metadata.stores.shared_store import SharedStore
from moldau.metadata.stores.store import MetadataStore


def make_store(config: BrokerConfig) -> MetadataStore:
    if config.zookeeper_connect:
        from moldau.metadata.stores.zookeeper_store import ZooKeeperStore  # for those who have an ensemble

        return ZooKeeperStore(
            config.zookeeper_connect,
            session_timeout_ms=config.zookeeper_session_timeout_ms,
            connection_timeout_ms=config.zookeeper_connection_timeout_ms or config.zookeeper_session_timeout_ms,
        )
    assert config.moldau_metadata_dir is not None
    return SharedStore(config.moldau_metadata_dir, session_timeout_ms=config.broker_session_timeout_ms)
