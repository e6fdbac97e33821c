"""Fifty thousand damaged frames over every served API and version: the broker refuses them and serves on."""

from __future__ import annotations

import asyncio
from pathlib import Path

from fuzz.attack import Attack
from fuzz.target import prepare, served_versions
from soak.broker_process import BrokerProcess
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import make_topic

FRAMES = 50_000
SEED = 20_261_115


def test_fifty_thousand_damaged_frames_hurt_nobody(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, log_level="WARNING") as broker:
        topic = make_topic(broker.bootstrap)
        attack = Attack(broker.bootstrap, prepare(broker.bootstrap), served_versions(broker.bootstrap), SEED)
        before_bytes = broker.rss_bytes()
        asyncio.run(asyncio.wait_for(attack.run(frames=FRAMES), 90))
        assert attack.sent >= FRAMES
        assert attack.outcomes["answered"] > FRAMES / 4, "or most frames never reached a handler"
        assert attack.outcomes["closed"] > FRAMES / 10, "or the frames were not damaged enough"

        assert attack.outcomes["silent"] == 0, "a whole request is answered or ends its connection"
        assert attack.outcomes["held"] < FRAMES / 20, "or too many were never looked at"

        assert broker.metrics()["moldau_unexpected_errors_total"] == 0, broker.output()[-5000:]
        assert "Traceback" not in broker.output()
        assert broker.rss_bytes() - before_bytes < 64 << 20
        for client in CLIENTS:
            places = client.produce(broker.bootstrap, topic, [Message(b"%d" % n, partition=0) for n in range(100)])
            found = client.read(broker.bootstrap, topic, start=places[0][1], count=100)
            assert [record.value for record in found] == [b"%d" % n for n in range(100)]
        assert broker.stop() == 0
        # What the damaged requests left behind in the logs is whole, too.
        broker.start()
        assert CLIENTS[0].first_and_end_offset(broker.bootstrap, topic) == (0, 300)
