"""A broker on its own whose files are all on a simulated disk: nothing of it reaches the real one."""

from __future__ import annotations

import asyncio
from pathlib import Path

from moldau.broker.environment import Environment
from moldau.broker.node import BrokerNode
from moldau.config.broker import BrokerConfig
from moldau.metadata.records import ProducerIdsRecord
from moldau.testing.simulation.disk import SimulatedDisk


def open_node(disk: SimulatedDisk) -> BrokerNode:
    config, _ = BrokerConfig.from_properties({"log.dirs": "/no-such-folder/data"}, strict=True)
    environment = Environment(disk=disk.mount(), start_thread=lambda work, name: work())
    node = BrokerNode(config, asyncio.get_running_loop(), environment)
    node.open()
    return node


async def test_metadata_survives_a_power_loss_and_a_clean_stop() -> None:
    disk = SimulatedDisk()
    node = open_node(disk)
    node.controller.adopt([ProducerIdsRecord(7000)])
    disk.lose_power()
    node = open_node(disk)
    assert node.metadata.image.next_producer_id == 7000
    await node.close()
    assert "/no-such-folder/data/.kafka_cleanshutdown" in disk.contents()
    node = open_node(disk)
    assert node.metadata.image.next_producer_id == 7000
    await node.close()
    assert not Path("/no-such-folder").exists()
