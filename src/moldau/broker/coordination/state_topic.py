"""The topic in which a coordinator keeps its state: created on first use; its leaders are the coordinators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.peers import FORWARDING
from moldau.broker.coordination.context import AskController, ChangeMetadata
from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.log_limits import LogLimit
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.topics import plan_create_topic
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema

logger = logging.getLogger(__name__)

KNOWN_TIMEOUT_S = 5.0
"""From the controller's answer until a new topic is known here: clients ask again after a second or so."""
KNOWN_POLL_S = 0.01


class StateTopicSettings(NamedTuple):
    """The settings with which a state topic is created."""

    partitions: int
    configs: Mapping[str, str]
    replication_factor: int = 1


_Settings = Callable[[BrokerConfig], StateTopicSettings]


class StateTopic:
    def __init__(
        self,
        name: str,
        settings: _Settings,
        *,
        loop: asyncio.AbstractEventLoop,
        local: LocalBroker,
        metadata: MetadataCache,
        new_uuid: Callable[[], UUID],
        ask_controller: AskController,
        change_metadata: ChangeMetadata,
    ) -> None:
        self.name = name
        self._settings = settings
        self._loop = loop
        self._local = local
        self._metadata = metadata
        self._new_uuid = new_uuid
        self._ask_controller = ask_controller
        self._change_metadata = change_metadata
        self._creating = asyncio.Lock()
        self._refusals = LogLimit(clock=loop.time)

    @property
    def exists(self) -> bool:
        return self.name in self._metadata.image.topics

    def partition_for(self, key: str) -> int:
        topic = self._metadata.image.topics.get(self.name)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name} does not exist yet")
        return java_hash(key) % len(topic.partitions)

    def leader_for(self, key: str) -> int:
        """The broker that has the shard of `key`, or will have loaded it soon."""
        index = self.partition_for(key)
        leader = self._metadata.image.topics[self.name].partitions[index].leader
        if leader not in self._metadata.live_brokers:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name}-{index} has no leader")
        return leader

    async def create(self) -> None:
        """Returns when the topic exists; KafkaError while it cannot be created."""
        if not self._local.config.is_clustered:
            await self._change_metadata(self._plan)
        elif not self.exists:
            async with self._creating:  # requests that arrive in the meantime wait for this one
                if not self.exists:
                    await self._create_by_controller()

    def _plan(self, image: MetadataImage) -> Sequence[Record]:
        if self.name in image.topics:
            return ()
        settings = self._settings(self._local.config)
        return plan_create_topic(
            image,
            self.name,
            topic_id=self._new_uuid(),
            num_partitions=settings.partitions,
            replication_factor=1,
            configs=settings.configs,
            broker_config=self._local.config,
        )

    async def _create_by_controller(self) -> None:
        try:
            answer = await self._ask_controller(ApiKey.CREATE_TOPICS, self._request, purpose=FORWARDING)
        except KafkaError as error:
            raise self._unavailable(error.message) from error
        created = answer.topics[0]
        if created.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            if self._refusals.allows(created.error_message):
                logger.error("cannot create a state topic", extra={"topic": self.name, "why": created.error_message})
            raise self._unavailable(created.error_message)
        deadline_s = self._loop.time() + KNOWN_TIMEOUT_S
        while not self.exists:
            if self._loop.time() > deadline_s:
                raise self._unavailable("it was created, but is not in the metadata of this broker yet")
            await asyncio.sleep(KNOWN_POLL_S)

    def _unavailable(self, why: str | None) -> KafkaError:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"cannot create {self.name}: {why}")

    def _request(self, schema: Schema) -> Any:
        settings = self._settings(self._local.config)
        configs = tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in settings.configs.items())
        topic = schema.CreatableTopic(
            name=self.name,
            num_partitions=settings.partitions,
            replication_factor=settings.replication_factor,
            assignments=(),
            configs=configs,
        )
        return schema.CreateTopicsRequest(topics=(topic,), validate_only=False)


NewStateTopic = Callable[[str, _Settings], StateTopic]
"""With the parts of the broker that every state topic needs."""


@lru_cache(maxsize=1024)  # the groups that are busy now; the hash is a fifth of what a small step costs
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`, over UTF-16 code units; 0 for the one number that has none."""
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else min(value, 0x100000000 - value)
