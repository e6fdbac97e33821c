"""The topic in which a coordinator keeps its state: made when it is first needed, and who leads which part of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moldau.broker.cluster.peers import FORWARDING
from moldau.errors import ErrorCode, KafkaError
from moldau.log_limits import LogLimit
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from moldau.metadata.topics import plan_create_topic
from moldau.wire.apis import ApiKey
from moldau.wire.messages import Schema

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

KNOWN_TIMEOUT_S = 5.0
"""From the controller's answer until a new topic is known here: clients ask again after a second or so."""
KNOWN_POLL_S = 0.01


class StateTopic:
    def __init__(
        self,
        node: BrokerNode,
        name: str,
        *,
        partitions: Callable[[], int],
        replication_factor: Callable[[], int],
        configs: Callable[[], dict[str, str]],
    ) -> None:
        self.name = name
        self._node = node
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._configs = configs
        self._creating = asyncio.Lock()
        self._refusals = LogLimit()

    @property
    def exists(self) -> bool:
        return self.name in self._node.image.topics

    def partition_for(self, key: str) -> int:
        topic = self._node.image.topics.get(self.name)
        if topic is None:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self.name} is not there yet")
        return java_hash(key) % len(topic.partitions)

    def leader_for(self, key: str) -> int:
        """The broker that has the shard of `key`, or will have loaded it soon."""
        index = self.partition_for(key)
        leader = self._node.image.topics[self.name].partitions[index].leader
        if leader not in self._node.live_brokers:
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"nobody leads {self.name}-{index}")
        return leader

    async def create(self) -> None:
        """Returns when it is there; KafkaError while it cannot be made."""
        if not self._node.config.is_clustered:
            await self._node.change_metadata(self._plan)
        elif not self.exists:
            async with self._creating:  # whoever comes meanwhile needs no request of his own
                if not self.exists:
                    await self._ask_for_it()

    def _plan(self, image: MetadataImage) -> Sequence[Record]:
        if self.name in image.topics:
            return ()
        return plan_create_topic(
            image,
            self.name,
            topic_id=self._node.environment.new_uuid(),
            num_partitions=self._partitions(),
            replication_factor=1,
            configs=self._configs(),
            broker_config=self._node.config,
        )

    async def _ask_for_it(self) -> None:
        try:
            answer = await self._node.ask_controller(ApiKey.CREATE_TOPICS, self._request, purpose=FORWARDING)
        except KafkaError as error:
            raise self._not_there(error.message) from error
        created = answer.topics[0]
        if created.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            if self._refusals.allows(created.error_message):
                log.error("cannot create a state topic", extra={"topic": self.name, "why": created.error_message})
            raise self._not_there(created.error_message)
        deadline_s = self._node.loop.time() + KNOWN_TIMEOUT_S
        while not self.exists:
            if self._node.loop.time() > deadline_s:
                raise self._not_there("it is not known here yet")
            await asyncio.sleep(KNOWN_POLL_S)

    def _not_there(self, why: str | None) -> KafkaError:
        return KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no {self.name}: {why}")

    def _request(self, schema: Schema) -> Any:
        configs = tuple(schema.CreatableTopicConfig(name=key, value=value) for key, value in self._configs().items())
        topic = schema.CreatableTopic(
            name=self.name,
            num_partitions=self._partitions(),
            replication_factor=self._replication_factor(),
            assignments=(),
            configs=configs,
        )
        return schema.CreateTopicsRequest(topics=(topic,), validate_only=False)


@lru_cache(maxsize=1024)  # the groups that are busy now; the hash is a fifth of what a small step costs
def java_hash(text: str) -> int:
    """The absolute value of Java's `String.hashCode`, over UTF-16 code units; 0 for the one number that has none."""
    value = 0
    data = text.encode("utf-16-be")
    for high, low in zip(data[::2], data[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return 0 if value == 0x80000000 else min(value, 0x100000000 - value)
