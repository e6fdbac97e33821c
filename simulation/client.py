"""A client of the cluster: a process on a host of its own that knows brokers by their metadata and tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from moldau.broker.cluster.peers import Peer
from moldau.errors import RETRIABLE, UNREACHABLE, ErrorCode, KafkaError
from moldau.testing.simulation.host import Host
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema, ms
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from simulation.run import Run

T = TypeVar("T")

REQUEST_TIMEOUT_S = 1.5
BACKOFF_S = 0.06
DAY_MS = 86_400_000
GROUP, TRANSACTION = 0, 1
"""Types of coordinators."""

AGAIN = RETRIABLE | UNREACHABLE
"""What a client repeats a request for."""

Address = tuple[str, int]


class Leader(NamedTuple):
    broker_id: int
    epoch: int
    topic_id: Any


class Client:
    def __init__(self, run: Run, name: str) -> None:
        self.run = run
        self.world = run.world
        self.name = name
        self.host = Host(run.world, run.cluster.network, name)
        self.is_done = False
        self.finished_us = 0
        self.connections: dict[Address, Peer] = {}
        self._asked = run.world.between_us(0, 100)
        self._addresses: dict[int, Address] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self._coordinators: dict[tuple[int, str], Address] = {}

    def start(self) -> None:
        """Begins, or begins again after its process died."""
        self.connections, self._coordinators = {}, {}
        loop = self.host.start_process()
        loop.create_task(self._main())

    async def _main(self) -> None:
        try:
            await self.work()
        except Exception as error:
            self.world.fail(error)
        self.is_done = True

    async def work(self) -> None:
        raise NotImplementedError

    def note(self, text: str, *args: object) -> None:
        self.world.note(self.name, text, *args)

    # -- asking

    async def persist(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Until it is done, or refused for good."""
        while True:
            try:
                return await attempt()
            except KafkaError as error:
                if error.code not in AGAIN:
                    raise
            await self.refresh()
            await asyncio.sleep(BACKOFF_S)

    async def ask(self, address: Address, key: int, build: Callable[[Schema], Any]) -> Any:
        return await self.peer(address).ask(key, build, timeout_s=REQUEST_TIMEOUT_S)

    def peer(self, address: Address) -> Peer:
        peer = self.connections.get(address)
        if peer is None:
            loop = asyncio.get_running_loop()
            peer = self.connections[address] = Peer(loop, address, self.name)
        return peer

    async def ask_any(self, key: int, build: Callable[[Schema], Any]) -> Any:
        """One broker after the other: any of them may be silent, or know only what was."""
        addresses = self.run.cluster.bootstrap
        self._asked += 1
        return await self.ask(addresses[self._asked % len(addresses)], key, build)

    async def refresh(self) -> None:
        """Asks somebody for the metadata, and forgets coordinators."""
        self._coordinators.clear()
        try:
            answer = await self.ask_any(ApiKey.METADATA, self._metadata_request)
        except KafkaError:
            return
        self._addresses |= {one.node_id: (one.host, one.port) for one in answer.brokers}
        for topic in answer.topics:
            for part in topic.partitions:
                place = TopicPartition(topic.name, part.partition_index)
                known = self._leaders.get(place)
                if known is None or part.leader_epoch >= known.epoch or known.topic_id != topic.topic_id:
                    self._leaders[place] = Leader(part.leader_id, part.leader_epoch, topic.topic_id)

    def _metadata_request(self, schema: Schema) -> Any:
        return schema.MetadataRequest(
            topics=tuple(schema.MetadataRequestTopic(topic_id=None, name=name) for name in self.run.scenario.topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )

    async def leader(self, place: TopicPartition) -> tuple[Address, Leader]:
        leader = self._leaders.get(place)
        if leader is None or leader.broker_id not in self._addresses:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader is known")
        return self._addresses[leader.broker_id], leader

    def topic_id(self, topic: str) -> Any:
        leader = self._leaders.get(TopicPartition(topic, 0))
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"nothing is known of {topic}")
        return leader.topic_id

    async def ask_coordinator(self, kind: int, key: str, api: int, build: Callable[[Schema], Any]) -> Any:
        address = self._coordinators.get((kind, key))
        if address is None:
            answer = await self.ask_any(
                ApiKey.FIND_COORDINATOR,
                lambda schema: schema.FindCoordinatorRequest(key_type=kind, coordinator_keys=(key,)),
            )
            (found,) = answer.coordinators
            check(found.error_code)
            address = self._coordinators[kind, key] = (found.host, found.port)
        return await self.ask(address, api, build)


def check(code: int) -> None:
    if code:
        raise KafkaError(ErrorCode(int(code)), ErrorCode(int(code)).name)


class Admin(Client):
    """Asks for one thing, until the cluster does it or refuses it for good."""

    def __init__(self, run: Run, name: str, key: int, build: Callable[[Schema], Any]) -> None:
        super().__init__(run, name)
        self._key = key
        self._build = build

    async def work(self) -> None:
        async def attempt() -> None:
            answer = await self.ask_any(self._key, self._build)
            for code in codes_in(answer):
                check(code)

        try:
            await self.persist(attempt)
        except KafkaError as error:
            self.note("is refused: {}", error.code.name)


class Churn(Client):
    """Changes a configuration again and again: each change is a new image for every broker."""

    def __init__(self, run: Run, name: str, topic: str, count: int) -> None:
        super().__init__(run, name)
        self._topic = topic
        self._count = count

    async def work(self) -> None:
        for number in range(self._count):
            build = setting(self._topic, "retention.ms", str(DAY_MS + number))

            async def attempt(build: Callable[[Schema], Any] = build) -> None:
                for code in codes_in(await self.ask_any(ApiKey.INCREMENTAL_ALTER_CONFIGS, build)):
                    check(code)

            await self.persist(attempt)
            await asyncio.sleep(self.world.between_us(0, 15_000) / 1e6)


def codes_in(answer: Any) -> list[int]:
    """Every error code of an answer, wherever it is."""
    codes = [answer.error_code] if getattr(answer, "error_code", 0) else []
    for name in getattr(answer, "__dataclass_fields__", ()):
        value = getattr(answer, name)
        if isinstance(value, tuple):
            codes += [code for entry in value if hasattr(entry, "__dataclass_fields__") for code in codes_in(entry)]
    return codes


# -- what administrators ask for


def creating(topics: Mapping[str, tuple[int, int, Mapping[str, str]]]) -> Callable[[Schema], Any]:
    """Topics by name: partitions, replicas, configuration."""

    def build(schema: Schema) -> Any:
        return schema.CreateTopicsRequest(
            topics=tuple(
                schema.CreatableTopic(
                    name=name,
                    num_partitions=partitions,
                    replication_factor=replicas,
                    assignments=(),
                    configs=tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
                )
                for name, (partitions, replicas, configs) in topics.items()
            ),
            timeout=ms(1_000),
            validate_only=False,
        )

    return build


def setting(topic: str, key: str, value: str) -> Callable[[Schema], Any]:
    def build(schema: Schema) -> Any:
        config = schema.AlterableConfig(name=key, config_operation=0, value=value)
        resource = schema.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(config,))
        return schema.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)

    return build


def reassigning(topic: str, index: int, replicas: list[int] | None) -> Callable[[Schema], Any]:
    def build(schema: Schema) -> Any:
        target = None if replicas is None else tuple(replicas)
        partition = schema.ReassignablePartition(partition_index=index, replicas=target)
        return schema.AlterPartitionReassignmentsRequest(
            timeout=ms(1_000),
            allow_replication_factor_change=True,
            topics=(schema.ReassignableTopic(name=topic, partitions=(partition,)),),
        )

    return build


def electing(schema: Schema) -> Any:
    return schema.ElectLeadersRequest(election_type=0, topic_partitions=None, timeout=ms(1_000))
