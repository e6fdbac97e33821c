"""A node opens what it finds on disk, and never deletes what it does not know."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from moldau.broker.cluster.incarnation import EPOCH_FILE
from moldau.broker.cluster.standalone import METADATA_FILE
from moldau.broker.node import BrokerNode
from moldau.config.broker import BrokerConfig
from moldau.errors import ConfigError, StorageError
from moldau.metadata.records import ConfigRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from moldau.wire.batch import encode_batch
from moldau.wire.uuids import random_uuid


def open_node(folder: Path) -> BrokerNode:
    config, _ = BrokerConfig.from_properties({"log.dirs": str(folder)})
    node = BrokerNode(config, asyncio.get_running_loop())
    node.open()
    node.begin()
    return node


async def node_with_topic(folder: Path, name: str, partitions: int = 1) -> BrokerNode:
    node = open_node(folder)
    topic_id = random_uuid()
    records: list[Record] = [TopicRecord(name, topic_id)]
    records += [PartitionRecord(topic_id, index, (1,), (1,), 1) for index in range(partitions)]
    await node.controller.change(lambda image: records)
    return node


def append(node: BrokerNode, topic: str, value: bytes) -> int:
    batch = bytearray(encode_batch([(None, value, 1_700_000_000_000, ())]))
    return node.find_partition(topic, None, 0).append(memoryview(batch), 1_700_000_000_000).base_offset


def folders(path: Path, ending: str = "") -> list[str]:
    return sorted(each.name for each in path.iterdir() if each.is_dir() and each.name.endswith(ending))


async def test_a_log_that_no_topic_owns_is_set_aside_not_deleted(tmp_path: Path) -> None:
    node = await node_with_topic(tmp_path, "known")
    await node.close()
    shutil.copytree(tmp_path / "known-0", tmp_path / "copied-0")
    node = open_node(tmp_path)
    assert list(node.logs.logs) == [("known", 0)]
    await node.close()
    (stray,) = folders(tmp_path, "-stray")
    assert stray.startswith("copied-0.")
    assert list((tmp_path / stray).glob("*.log"))


async def test_a_lost_partition_metadata_file_does_not_cost_the_log(tmp_path: Path) -> None:
    node = await node_with_topic(tmp_path, "orders")
    append(node, "orders", b"kept")
    topic_id = node.metadata.image.topics["orders"].topic_id
    await node.close()
    (tmp_path / "orders-0" / "partition.metadata").unlink()
    node = open_node(tmp_path)
    log = node.find_partition("orders", None, 0).log
    assert (log.log_end_offset, log.topic_id) == (1, topic_id)
    await node.close()


async def test_topics_without_metadata_are_adopted_with_their_ids_and_a_new_leader_epoch(tmp_path: Path) -> None:
    node = await node_with_topic(tmp_path, "orders", partitions=2)
    append(node, "orders", b"old")
    topic_id = node.metadata.image.topics["orders"].topic_id
    await node.close()
    (tmp_path / METADATA_FILE).unlink()
    node = open_node(tmp_path)
    topic = node.metadata.image.topics["orders"]
    assert (topic.topic_id, len(topic.partitions), topic.partitions[0].leader_epoch) == (topic_id, 2, 1)
    assert append(node, "orders", b"new") == 1
    # Its configuration was lost with the metadata: nothing may be deleted until somebody sets it.
    assert (
        node.metadata.topic_config("orders").retention_ms,
        node.metadata.topic_config("orders").retention_bytes,
    ) == (-1, -1)
    await node.close()


async def test_nothing_is_adopted_while_the_metadata_is_in_another_folder(tmp_path: Path) -> None:
    node = await node_with_topic(tmp_path / "a", "orders")
    await node.close()
    config, _ = BrokerConfig.from_properties({"log.dirs": f"{tmp_path / 'b'},{tmp_path / 'a'}"})
    node = BrokerNode(config, asyncio.get_running_loop())
    with pytest.raises(ConfigError, match="put it first"):
        node.open()
    await node.close()


async def test_half_a_topic_is_not_adopted(tmp_path: Path) -> None:
    node = await node_with_topic(tmp_path, "orders", partitions=2)
    await node.close()
    (tmp_path / METADATA_FILE).unlink()
    shutil.rmtree(tmp_path / "orders-0")
    config, _ = BrokerConfig.from_properties({"log.dirs": str(tmp_path)})
    node = BrokerNode(config, asyncio.get_running_loop())
    with pytest.raises(StorageError, match="cannot adopt topic orders"):
        node.open()
    await node.close()


async def test_a_deleted_topic_is_gone_and_a_new_one_of_its_name_starts_empty(tmp_path: Path) -> None:
    node = await node_with_topic(tmp_path, "orders")
    append(node, "orders", b"old")
    topic_id = node.metadata.image.topics["orders"].topic_id
    await node.controller.change(lambda image: [RemoveTopicRecord(topic_id)])
    assert ("orders", 0) not in node.logs.logs
    await node.close()
    node = await node_with_topic(tmp_path, "orders")
    assert append(node, "orders", b"new") == 0
    await node.close()


async def test_dynamic_values_that_no_longer_fit_are_left_out_and_changes_go_on(tmp_path: Path) -> None:
    node = open_node(tmp_path)
    await node.controller.change(lambda image: [ConfigRecord("broker", "1", "log.cleaner.max.compaction.lag.ms", "50")])
    await node.close()
    config, _ = BrokerConfig.from_properties({"log.dirs": str(tmp_path), "log.cleaner.min.compaction.lag.ms": "100"})
    node = BrokerNode(config, asyncio.get_running_loop())
    node.open()
    node.begin()
    assert node.local.config is config
    topic_id = random_uuid()
    await node.controller.change(
        lambda image: [TopicRecord("t", topic_id), PartitionRecord(topic_id, 0, (1,), (1,), 1)]
    )
    assert append(node, "t", b"x") == 0
    await node.close()


async def test_a_broker_on_its_own_does_not_touch_the_folders_of_a_cluster(tmp_path: Path) -> None:
    member, cluster = tmp_path / "member", tmp_path / "cluster"
    (cluster / "broker-1").mkdir(parents=True)
    (cluster / "broker-1" / "meta.properties").touch()
    member.mkdir()
    (member / EPOCH_FILE).write_text("{}")
    for folder, wanted in ((member, "a broker of a cluster"), (cluster, "--brokers N")):
        before = sorted(folder.iterdir())
        with pytest.raises(ConfigError, match=wanted):
            open_node(folder)
        assert sorted(folder.iterdir()) == before


async def test_whoever_waits_for_the_first_image_hears_of_it(tmp_path: Path) -> None:
    config, _ = BrokerConfig.from_properties({"log.dirs": str(tmp_path), "moldau.metadata.dir": str(tmp_path / "m")})
    node = BrokerNode(config, asyncio.get_running_loop())
    image = node.metadata.image.apply([ConfigRecord("broker", "", "num.partitions", "3")])
    node.metadata.follow(image)
    waiting = asyncio.ensure_future(node.metadata.applied(image.version))
    await asyncio.sleep(0)
    node.metadata.begin_with(node.metadata.newest)
    node.open_logs()
    node.begin()
    await asyncio.wait_for(waiting, 10)
    await node.close()


async def test_a_log_directory_that_is_a_file_is_refused_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(ConfigError, match="/data cannot be used"):
        open_node(tmp_path / "data")
