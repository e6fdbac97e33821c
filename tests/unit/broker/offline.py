"""A broker without sockets: requests go through its dispatcher as frames, in any version."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from moldau.broker.handlers.api_table import API_TABLE
from moldau.broker.network.client_connection import Pipelined
from moldau.broker.network.dispatch import Dispatcher
from moldau.broker.node import BrokerNode
from moldau.wire.apis import ApiKey
from moldau.wire.batch import encode_batch
from moldau.wire.messages import Schema, decode_response, encode_request, request_schema

LISTENER, ADVERTISED = "PLAINTEXT", ("broker.example", 9092)
DEADLINE_S = 30.0


async def until(is_so: Callable[[], object]) -> None:
    """Waits for a state, never for a time."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():
            await asyncio.sleep(0.002)


class OfflineConnection:
    listener, peer_host = LISTENER, "127.0.0.1"

    def keep_frame(self) -> None:
        """Each request has a buffer of its own here."""


class OfflineBroker:
    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        self._dispatcher = Dispatcher(node, API_TABLE)

    async def ask(self, key: ApiKey, version: int, build: Callable[[Schema], Any]) -> Any:
        """The answer to the request that `build` makes out of the version's classes."""
        frame = encode_request(7, "test", build(request_schema(key, version)))
        correlation_id, answer = decode_response(key, version, (await self.send(frame[4:]))[4:])
        assert correlation_id == 7
        return answer

    async def send(self, frame: bytes) -> bytes:
        """A request's bytes, without their size, to its answer's."""
        answer: Any = self._dispatcher.handle(
            OfflineConnection(),  # type: ignore[arg-type]
            memoryview(bytearray(frame)),
        )
        if isinstance(answer, Pipelined):
            answer = await answer.future
        elif inspect.isawaitable(answer):
            answer = await answer
        return answer if isinstance(answer, bytes) else b"".join(answer)

    async def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        answer = await self.ask(
            ApiKey.CREATE_TOPICS,
            7,
            lambda schema: schema.CreateTopicsRequest(
                topics=(new_topic(schema, name, partitions, configs=configs),),
                validate_only=False,
            ),
        )
        assert answer.topics[0].error_code == 0, answer.topics[0].error_message

    def write(self, topic: str, count: int, partition: int = 0) -> None:
        """`count` records, one batch each."""
        for _ in range(count):
            batch = bytearray(encode_batch([(b"k", b"v", 1_700_000_000_000, ())]))
            self.node.find_partition(topic, None, partition).append(memoryview(batch), self.node.clock())


def new_topic(
    schema: Schema,
    name: str,
    partitions: int = -1,
    *,
    replication_factor: int = -1,
    configs: dict[str, Any] | None = None,
    assignments: dict[int, tuple[int, ...]] | None = None,
) -> Any:
    return schema.CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=tuple(
            schema.CreatableReplicaAssignment(partition_index=index, broker_ids=ids)
            for index, ids in (assignments or {}).items()
        ),
        configs=tuple(
            schema.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in (configs or {}).items()
        ),
    )


StartOffline = Callable[..., OfflineBroker]
