"""Consumer groups (KIP-848) with real clients: sharing, regular expressions, restarts, and changing the protocol."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from bench.servers.apache import JARS
from moldau import Broker
from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import ms, request_schema
from soak.broker_process import BrokerProcess
from tests.integration.clients import present
from tests.integration.conftest import make_topic
from tests.integration.raw import RawClient
from tests.integration.records.test_apache import _missing, java
from tests.integration.waiting import eventually

QUICK = {
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 2_000,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.min.session.timeout.ms": 500,
}
"""What happens between members happens at their heartbeats: Kafka's five seconds are long for a test."""

CONSUMER: dict[str, Any] = {"group.protocol": "consumer"}
EAGER: dict[str, Any] = {"session.timeout.ms": 2_000, "heartbeat.interval.ms": 100}
COOPERATIVE: dict[str, Any] = {**EAGER, "partition.assignment.strategy": "cooperative-sticky"}

needs_java = pytest.mark.skipif(_missing() is not None, reason=str(_missing()))


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(QUICK) as one:
        yield one


@pytest.fixture
def start(broker: Broker) -> Iterator[Callable[..., Reader]]:
    """Starts readers on the module's broker; they are closed at the end of the test."""
    with ExitStack() as opened:

        def one(topic: str, group: str, config: dict[str, Any]) -> Reader:
            reader = Reader(broker.bootstrap_servers, topic, group, config)
            opened.callback(reader.close)
            return reader

        yield one


class Reader:
    """A consumer that polls in the background, as a program would."""

    def __init__(self, bootstrap: str, topic: str, group: str, config: dict[str, Any]) -> None:
        self.values: list[bytes] = []
        self.held: frozenset[tuple[str, int]] = frozenset()
        self._stop = threading.Event()
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "log_level": 2,
                **config,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._stop.is_set():
            for message in self._consumer.consume(100, 0.05):
                if message.error() is None:
                    self.values.append(present(message.value()))
            self.held = frozenset((one.topic, one.partition) for one in self._consumer.assignment())
        self._consumer.close()
        self.held = frozenset()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(30)


def share(readers: list[Reader], topic: str, count: int) -> bool:
    """Each partition has one reader, and no reader has more than one more than another."""
    held = [one for reader in readers for one in reader.held]
    loads = [len(reader.held) for reader in readers]
    return sorted(held) == [(topic, number) for number in range(count)] and max(loads) - min(loads) <= 1


def produce(bootstrap: str, topic: str, values: range, partitions: int = 4) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in values:
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


def read_by(readers: list[Reader], values: range) -> bool:
    return {b"%d" % number for number in values} <= {value for reader in readers for value in reader.values}


def described(bootstrap: str, group: str) -> Any:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # it has to outlive the request
    return admin.describe_consumer_groups([group])[group].result(10)


def group_name() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


def test_members_share_and_take_over(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 4), group_name()
    one = start(topic, group, CONSUMER)
    produce(broker.bootstrap_servers, topic, range(100))
    eventually(lambda: read_by([one], range(100)), "the first member reads all")
    two = start(topic, group, CONSUMER)
    eventually(lambda: share([one, two], topic, 4), "two members share")
    produce(broker.bootstrap_servers, topic, range(100, 200))
    eventually(lambda: read_by([one, two], range(200)), "both read")
    two.close()
    eventually(lambda: share([one], topic, 4), "the one that is left takes over")
    produce(broker.bootstrap_servers, topic, range(200, 300))
    eventually(lambda: read_by([one], range(200, 300)), "and reads on")
    assert len(one.values) + len(two.values) == 300, "what was committed is not read again"


def test_a_regular_expression_takes_up_topics_that_are_made_later(broker: Broker, start: Callable[..., Reader]) -> None:
    prefix = f"orders{uuid.uuid4().hex[:8]}"
    first = make_topic(broker.bootstrap_servers, 2, name=f"{prefix}-1")
    make_topic(broker.bootstrap_servers, 1, name=f"other-{prefix}")
    reader = start(f"^{prefix}-.*", group_name(), CONSUMER)
    eventually(lambda: share([reader], first, 2), "the topic that is there")
    second = make_topic(broker.bootstrap_servers, 3, name=f"{prefix}-2")
    both = {(first, 0), (first, 1), (second, 0), (second, 1), (second, 2)}
    eventually(lambda: reader.held == both, "and the one that came later")


def test_new_partitions_are_read_without_a_restart(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 1), group_name()
    readers = [start(topic, group, CONSUMER) for _ in range(2)]
    eventually(lambda: share(readers, topic, 1), "one reads, one is spare")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(10)
    eventually(lambda: share(readers, topic, 5), "both read")


def test_the_members_choose_the_range_assignor(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 4), group_name()
    readers = [start(topic, group, {**CONSUMER, "group.remote.assignor": "range"}) for _ in range(2)]
    eventually(lambda: share(readers, topic, 4), "two members share")
    assert {frozenset(number for _, number in reader.held) for reader in readers} == {
        frozenset([0, 1]),
        frozenset([2, 3]),
    }


def test_a_static_member_comes_back_to_its_partitions(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 4), group_name()
    one, two = (start(topic, group, {**CONSUMER, "group.instance.id": f"i{number}"}) for number in range(2))
    eventually(lambda: share([one, two], topic, 4), "two members share")
    held = one.held
    one.close()
    again = start(topic, group, {**CONSUMER, "group.instance.id": "i0"})
    eventually(lambda: again.held == held, "the same partitions")
    assert share([again, two], topic, 4)


def test_a_group_is_described(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 2), group_name()
    reader = start(topic, group, {**CONSUMER, "client.id": "me", "group.instance.id": "i"})
    eventually(lambda: share([reader], topic, 2), "the group is stable")
    told = described(broker.bootstrap_servers, group)
    assert (told.state.name, told.type.name, told.partition_assignor) == ("STABLE", "CONSUMER", "uniform")
    (member,) = told.members
    assert (member.client_id, member.group_instance_id, member.host) == ("me", "i", "/127.0.0.1")
    for assignment in (member.assignment, member.target_assignment):
        assert {(one.topic, one.partition) for one in assignment.topic_partitions} == reader.held


def test_a_group_goes_on_after_its_broker_was_killed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, QUICK) as broker:
        topic, group = make_topic(broker.bootstrap, 4), group_name()
        readers = [Reader(broker.bootstrap, topic, group, CONSUMER) for _ in range(2)]
        try:
            eventually(lambda: share(readers, topic, 4), "two members share")
            produce(broker.bootstrap, topic, range(100))
            eventually(lambda: read_by(readers, range(100)), "all is read")
            members = {member.member_id for member in described(broker.bootstrap, group).members}
            broker.kill()
            broker.start()
            assert {member.member_id for member in described(broker.bootstrap, group).members} == members
            produce(broker.bootstrap, topic, range(100, 200))
            eventually(lambda: read_by(readers, range(200)), "they read on")
            assert share(readers, topic, 4)
        finally:
            for reader in readers:
                reader.close()
        assert "Traceback" not in broker.output()


@pytest.mark.parametrize("classic", [EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def test_a_group_changes_its_protocol_and_back_and_loses_nothing(
    broker: Broker, start: Callable[..., Reader], classic: dict[str, Any]
) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 6), group_name()
    bootstrap = broker.bootstrap_servers
    readers = [start(topic, group, classic) for _ in range(3)]
    eventually(lambda: share(readers, topic, 6), "three classic members share")
    everyone = list(readers)
    for turn, config in enumerate((*[CONSUMER] * 3, *[classic] * 3)):  # a rolling restart, and another one back
        new = start(topic, group, config)
        everyone.append(new)
        readers.append(new)
        readers.pop(0).close()
        sent = range(60 * turn, 60 * turn + 60)
        produce(bootstrap, topic, sent, 6)
        eventually(lambda: share(readers, topic, 6), "all partitions are read")
        eventually(partial(read_by, everyone, sent), "nothing is lost")
    assert described(bootstrap, group).type.name == "CLASSIC"


# -- on the wire


def heartbeat(client: RawClient, version: int = 1, **fields: Any) -> Any:
    schema = request_schema(ApiKey.CONSUMER_GROUP_HEARTBEAT, version)
    request: dict[str, Any] = {
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout": ms(5_000),
        "subscribed_topic_names": (),
        "topic_partitions": (),
    }
    return client.ask(schema.ConsumerGroupHeartbeatRequest(**{**request, **fields}))


def describe(client: RawClient, *groups: str) -> Any:
    schema = request_schema(ApiKey.CONSUMER_GROUP_DESCRIBE, 1)
    request = schema.ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=True)
    return client.ask(request).groups


def test_the_broker_makes_member_ids_only_for_the_oldest_clients(broker: Broker) -> None:
    group = group_name()
    with RawClient(broker.bootstrap_servers) as client:
        find_coordinator(client, group)
        told = heartbeat(client, 0, group_id=group, member_id="")
        assert told.error_code == ErrorCode.NONE
        assert told.member_id
        assert told.member_epoch == 1
        refused = heartbeat(client, 1, group_id=group, member_id="")
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert refused.error_message == "MemberId can't be empty."


def test_refusals_of_a_heartbeat_say_why(broker: Broker) -> None:
    group = group_name()
    with RawClient(broker.bootstrap_servers) as client:
        find_coordinator(client, group)
        assert heartbeat(client, group_id=group, subscribed_topic_regex="(").error_code == (
            ErrorCode.INVALID_REGULAR_EXPRESSION
        )
        assert heartbeat(client, group_id=group, member_epoch=3).error_code == ErrorCode.GROUP_ID_NOT_FOUND
        assert heartbeat(client, group_id=group).error_code == ErrorCode.NONE
        assert heartbeat(client, group_id=group, member_epoch=3).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_only_consumer_groups_are_described(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, classic, group = make_topic(broker.bootstrap_servers, 1), group_name(), group_name()
    reader = start(topic, classic, EAGER)
    eventually(lambda: share([reader], topic, 1), "a classic group")
    with RawClient(broker.bootstrap_servers) as client:
        find_coordinator(client, group)
        heartbeat(client, group_id=group, instance_id="i", rack_id="r")
        told = describe(client, classic, "nobody", "", group)
    codes = [ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID, ErrorCode.NONE]
    assert [one.error_code for one in told] == codes
    (member,) = told[3].members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_type) == ("m", "i", "r", 1)
    assert (told[3].group_state, told[3].group_epoch, told[3].assignment_epoch) == ("Stable", 1, 1)


def test_the_protocol_can_be_turned_off() -> None:
    with (
        Broker({"group.coordinator.rebalance.protocols": "classic"}) as broker,
        RawClient(broker.bootstrap_servers) as client,
    ):
        find_coordinator(client, "g")
        assert heartbeat(client, group_id="g").error_code == ErrorCode.UNSUPPORTED_VERSION
        (told,) = describe(client, "g")
        assert told.error_code == ErrorCode.UNSUPPORTED_VERSION


def find_coordinator(client: RawClient, group: str) -> None:
    """Which makes the topic that groups are kept in, and takes until its partition is there."""
    schema = request_schema(ApiKey.FIND_COORDINATOR, 4)
    request = schema.FindCoordinatorRequest(key_type=0, coordinator_keys=(group,))
    eventually(lambda: client.ask(request).coordinators[0].error_code == ErrorCode.NONE, "a coordinator")


# -- Apache's own client


@pytest.mark.apache
@needs_java
def test_apaches_consumer_reads_with_the_consumer_protocol(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 4), group_name()
    bootstrap = broker.bootstrap_servers
    produce(bootstrap, topic, range(50))
    said = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", bootstrap, "--topic", topic,
        "--group", group, "--from-beginning", "--max-messages", 50, "--timeout-ms", 20_000,
        "--consumer-property", "group.protocol=consumer",
    )  # fmt: skip
    assert {f"{number}" for number in range(50)} <= set(said.split())
    told = java("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "--bootstrap-server", bootstrap,
                "--describe", "--group", group, "--state", "--verbose")  # fmt: skip
    assert "Empty" in told
    assert "uniform" in told


@pytest.mark.apache
@needs_java
def test_apaches_and_librdkafkas_members_are_in_one_group(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 4), group_name()
    ours = start(topic, group, CONSUMER)
    eventually(lambda: share([ours], topic, 4), "the first member has all")
    apaches = subprocess.Popen(
        ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS.libs}/*",
         "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", broker.bootstrap_servers,
         "--topic", topic, "--group", group, "--consumer-property", "group.protocol=consumer"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        eventually(lambda: len(ours.held) == 2, "both have two")
        eventually(lambda: described(broker.bootstrap_servers, group).state.name == "STABLE", "the group is stable")
    finally:
        apaches.terminate()
        apaches.wait(30)
    eventually(lambda: len(ours.held) == 4, "the one that is left has all")


@pytest.mark.apache
@needs_java
def test_apaches_tool_reads_the_records_of_a_group(broker: Broker, start: Callable[..., Reader]) -> None:
    topic, group = make_topic(broker.bootstrap_servers, 2), group_name()
    readers = [start(f"^{topic}.*", group, CONSUMER), start(topic, group, EAGER)]
    eventually(lambda: share(readers, topic, 2), "one of each protocol")
    for reader in readers:
        reader.close()
    logs = ",".join(str(path) for path in broker.data_dir.glob("__consumer_offsets-*/*.log") if path.stat().st_size)
    said = java("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", logs)
    kinds = set()
    for key, value in re.findall(r"key: (\{.*?\}) payload: (\{.*\}|<DELETE>)", said):
        kind = json.loads(key)
        if kind["data"].get("groupId", kind["data"].get("group")) == group:
            kinds.add((int(kind["type"]), value == "<DELETE>"))
    assert {(kind, gone) for kind in (3, 5, 6, 7, 8, 16) for gone in (False, True)} - kinds <= {(3, True), (6, True)}
    assert "Error" not in said
