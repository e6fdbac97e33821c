"""A seed is the same run in every process, with a client library inside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

STORM = """
import asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from moldau.testing.simulation import simulate

async def storm(cluster):
    servers = cluster.bootstrap_servers
    await cluster.create_topic("orders", 6)
    await cluster.create_topic("returns", 2)
    seen = set()

    async def consume():
        settings = {"group_id": "billing", "auto_offset_reset": "earliest"}
        async with AIOKafkaConsumer("orders", "returns", bootstrap_servers=servers, **settings) as consumer:
            async for record in consumer:
                seen.add(record.value)

    workers = [cluster.process(f"worker-{number}", consume) for number in range(3)]
    async with cluster.random_faults(), AIOKafkaProducer(bootstrap_servers=servers) as producer:
        for number in range(20):
            await producer.send_and_wait("orders" if number % 3 else "returns", b"%d" % number)
            await asyncio.sleep(0.2)
        workers[0].kill()
        workers[0].start()
    await cluster.until(lambda: len(seen) == 20)
    return cluster.fingerprint

print(simulate(storm, seeds=range(2)))
"""


def test_a_seed_is_the_same_run_in_every_process(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", STORM], env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    first, second = (process.communicate(timeout=100)[0] for process in running)
    assert first == second != ""
