"""Who a broker is: its configuration in force, its addresses."""

from __future__ import annotations

import pytest

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.config.broker import BrokerConfig
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord
from moldau.metadata.stores.store import ControllerTerm


def broker(**properties: str) -> LocalBroker:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    return LocalBroker(BrokerConfig.from_properties({"node.id": "1", **given})[0])


def image(*configs: tuple[str, str, str]) -> MetadataImage:
    return MetadataImage().apply([ConfigRecord("broker", name, key, value) for name, key, value in configs])


def test_dynamic_values_are_in_force_and_gone_with_their_records() -> None:
    local = broker()
    assert local.apply_overrides(image(("", "log.retention.ms", "5"), ("1", "log.cleaner.threads", "2")))
    assert (local.config.log_retention_ms, local.config.log_cleaner_threads) == (5, 2)
    assert not local.apply_overrides(image(("", "log.retention.ms", "5"), ("1", "log.cleaner.threads", "2")))
    assert local.apply_overrides(MetadataImage())
    assert local.config.log_retention_ms is None


def test_dynamic_values_that_no_longer_fit_are_left_out() -> None:
    local = broker(**{"log.cleaner.min.compaction.lag.ms": "100"})
    config = local.config
    assert not local.apply_overrides(image(("1", "log.cleaner.max.compaction.lag.ms", "50")))
    assert local.config is config


def test_what_all_brokers_have_to_agree_on_is_in_force_though_the_rest_does_not_fit() -> None:
    local = broker()
    agreed = (
        ("", "min.insync.replicas", "2"),
        ("1", "min.insync.replicas", "3"),  # of a time when that was allowed
    )
    assert local.apply_overrides(image(("", "log.retention.ms", "0"), *agreed)), "0 is invalid"
    assert (local.config.log_retention_ms, local.config.min_insync_replicas) == (None, 2)
    assert local.apply_overrides(image(("", "log.retention.ms", "5"), *agreed))
    assert (local.config.log_retention_ms, local.config.min_insync_replicas) == (5, 2)


@pytest.mark.parametrize(("port", "is_elected"), [(9092, True), (9093, False)])
def test_a_controller_with_its_id_at_another_address_is_another_broker(port: int, is_elected: bool) -> None:
    local = broker()
    local.advertised["PLAINTEXT"] = ("localhost", 9092)
    assert local.is_elected(ControllerTerm(3, 1, "localhost", port)) is is_elected
