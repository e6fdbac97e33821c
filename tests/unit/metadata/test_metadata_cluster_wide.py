"""`min.insync.replicas`: one value for the whole cluster, which nobody can alter or remove for one broker alone."""

from __future__ import annotations

import uuid

import pytest

from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.cluster_wide import ignored_values, initial_records
from moldau.metadata.configs import ConfigChange, ConfigOp, plan_alter_configs, plan_incremental_alter_configs
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import BrokerRecord, ConfigRecord, PartitionRecord, TopicRecord

KEY = "min.insync.replicas"
ID = uuid.UUID(int=5)
EMPTY = MetadataImage().apply([BrokerRecord(1, 1, ()), BrokerRecord(2, 2, ())])
CLUSTER = EMPTY.apply([ConfigRecord("broker", "", KEY, "2")])
BROKER_LEVEL = "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
CLUSTER_LEVEL = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."


def config(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({"node.id": "1", **{k.replace("_", "."): v for k, v in properties.items()}})[0]


def test_the_first_controllers_value_becomes_the_clusters() -> None:
    image = EMPTY.apply(initial_records(EMPTY, config(min_insync_replicas="2")))
    assert dict(image.broker_config(None)) == {KEY: "2"}
    assert initial_records(image, config(min_insync_replicas="3")) == [], "later ones keep it"


def test_values_of_single_brokers_are_removed_and_nobody_stays_eligible_by_them() -> None:
    image = EMPTY.apply(
        [
            ConfigRecord("broker", "2", KEY, "1"),
            ConfigRecord("broker", "2", "log.retention.ms", "5"),
            TopicRecord("t", ID),
            PartitionRecord(ID, 0, (1, 2), (1,), 1, elr=(2,)),
        ]
    )
    image = image.apply(initial_records(image, config()))
    assert dict(image.broker_config(None)) == {KEY: "1"}
    assert dict(image.broker_config(2)) == {"log.retention.ms": "5"}
    assert image.topics["t"].partitions[0].elr == ()
    assert initial_records(image, config()) == []


@pytest.mark.parametrize("op", [ConfigOp.SET, ConfigOp.DELETE])
def test_it_cannot_be_altered_for_one_broker(op: ConfigOp) -> None:
    image = CLUSTER.apply([ConfigRecord("broker", "2", KEY, "1")])
    change = ConfigChange(KEY, op, "3" if op is ConfigOp.SET else None)
    with pytest.raises(KafkaError) as refused:
        plan_incremental_alter_configs(image, "broker", "2", [change], config())
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_CONFIG, BROKER_LEVEL)
    with pytest.raises(KafkaError) as refused:
        plan_alter_configs(CLUSTER, "broker", "1", {KEY: "3"}, config())
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_CONFIG, BROKER_LEVEL)


def test_the_clusters_value_can_be_changed_but_not_removed() -> None:
    changed = plan_incremental_alter_configs(CLUSTER, "broker", "", [ConfigChange(KEY, ConfigOp.SET, "3")], config())
    assert CLUSTER.apply(changed).broker_config(None)[KEY] == "3"
    with pytest.raises(KafkaError) as refused:
        plan_incremental_alter_configs(CLUSTER, "broker", "", [ConfigChange(KEY, ConfigOp.DELETE)], config())
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_CONFIG, CLUSTER_LEVEL)
    with pytest.raises(KafkaError) as refused:
        plan_alter_configs(CLUSTER, "broker", "", {"log.retention.ms": "5"}, config())
    assert (refused.value.code, refused.value.message) == (ErrorCode.INVALID_CONFIG, CLUSTER_LEVEL)


def test_a_file_that_says_something_else_is_warned_about_with_both_values() -> None:
    (warning,) = ignored_values(CLUSTER, config(min_insync_replicas="1"))
    assert warning.startswith(f"{KEY}=1 in this broker's configuration is ignored: the cluster uses 2.")
    assert ignored_values(CLUSTER, config(min_insync_replicas="2")) == []
    assert ignored_values(CLUSTER, config()) == [], "who says nothing contradicts nobody"
    assert ignored_values(EMPTY, config(min_insync_replicas="2")) == []


def test_the_clusters_value_beats_the_file_and_a_leftover_of_the_broker() -> None:
    own = config(min_insync_replicas="1").with_overrides({KEY: "3"}, {KEY: "2"})
    assert own.min_insync_replicas == 2
