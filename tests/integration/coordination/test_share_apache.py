"""Apache's Java share consumer and tools on our queues, and its dump tool on what we remember of them."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path

from moldau import Broker
from moldau.client.admin import Resource, alter_configs
from moldau.wire.constants import ResourceType
from tests.integration.clients import CLIENTS, Message
from tests.integration.conftest import cluster_at, make_topic
from tests.integration.records.test_apache import dump, files, java, pytestmark  # noqa: F401 - skips where there are no jars

TOOLS = "org.apache.kafka.tools.consumer"


def share_groups(bootstrap: str, *arguments: str) -> str:
    return java(f"{TOOLS}.group.ShareGroupCommand", "--bootstrap-server", bootstrap, *arguments)


def test_the_java_share_consumer_and_its_tools_work_on_our_queues(tmp_path: Path) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    with Broker({"share.coordinator.state.topic.num.partitions": 1}, data_dir=tmp_path) as broker:
        bootstrap = broker.bootstrap_servers
        topic = make_topic(bootstrap, 1)
        with cluster_at(bootstrap) as cluster:
            wanted = {"share.auto.offset.reset": "earliest"}
            alter_configs(cluster, Resource(ResourceType.GROUP, group), set_values=wanted)
        values = [f"value-{number}" for number in range(20)]
        CLIENTS[0].produce(bootstrap, topic, [Message(value.encode(), partition=0) for value in values])
        consumed = java(
            f"{TOOLS}.ConsoleShareConsumer", "--bootstrap-server", bootstrap, "--topic", topic, "--group", group,
            "--max-messages", "20", "--timeout-ms", "20000",
        )  # fmt: skip
        assert [line for line in consumed.splitlines() if line.startswith("value-")] == values
        described = share_groups(bootstrap, "--describe", "--group", group, "--offsets")
        assert re.search(rf"^{group}\s+{topic}\s+0\s+20\s+0$", described, re.M)
        assert "was successful" in share_groups(bootstrap, "--delete", "--group", group)
    logs = dump("--share-group-state-decoder", "--files", files(tmp_path / "__share_group_state-0", ".log"))
    payloads = [json.loads(payload)["data"] for payload in re.findall(r"payload: ({.*})$", logs, re.M)]
    starts = [payload["startOffset"] for payload in payloads]
    assert starts[:2] == [-1, 0], "initialized by the group, then begun by the partition's leader"
    assert 20 in starts, "all of it accepted"
    assert logs.rstrip().endswith("<DELETE>")
