"""The metadata of this broker: the current image, and the newest one it knows of.

Requests read `image`, on the event loop. The controller, or the fetcher of another controller's records, passes newer
images to `follow`; `metadata_follower` applies them and makes each the current one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.config.topic import TopicConfig
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from moldau.wire.primitives import NodeEndpoint


class MetadataCache:
    def __init__(self, me: LocalBroker) -> None:
        self.image = MetadataImage()
        """The current image, which requests see. Only `metadata_follower` replaces it."""
        self.newest = self.image
        """The current image, or a newer one that is being applied."""
        self.is_newer = asyncio.Event()
        """Set while the newest image is not the current one."""
        self._me = me
        self._applied = asyncio.Condition()
        self._applied_version = -1

    # -- reading

    @property
    def live_brokers(self) -> frozenset[int]:
        live = frozenset(one.broker_id for one in self.image.brokers.values() if not one.fenced)
        return live or frozenset((self._me.node_id,))

    def address_of(self, broker_id: int) -> tuple[str, int]:
        """Where other brokers reach that one."""
        return self.address_in(self.image, broker_id)

    def address_in(self, image: MetadataImage, broker_id: int) -> tuple[str, int]:
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.endpoints:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker_id} is not registered")
        named = [endpoint for endpoint in broker.endpoints if endpoint[0] == self._me.inter_broker_listener]
        _, host, port, _ = (named or broker.endpoints)[0]
        return host, port

    def endpoints(self, listener: str, *, fenced: bool = False, also: Container[int] = ()) -> list[NodeEndpoint]:
        """The live brokers (or the `fenced` ones) and those in `also`, as a client of this listener reaches them."""
        found = [
            (broker.broker_id, host, port, broker.rack)
            for broker in self.image.brokers.values()
            if broker.fenced is fenced or broker.broker_id in also
            for name, host, port, _ in broker.endpoints
            if name == listener
        ]
        me = self._me
        if not found and not fenced and listener in me.advertised:
            # A client forgets all brokers that an answer leaves out (librdkafka for good): leave it with one.
            return [(me.node_id, *me.advertised[listener], me.config.broker_rack)]
        return found

    def topic_config(self, topic: str) -> TopicConfig:
        return TopicConfig.resolve(self.image.topic_config(topic), self._me.config)

    # -- newer images

    def begin_with(self, image: MetadataImage) -> None:
        """Sets the first image, before the logs are opened."""
        self.image = image
        self._applied_version = image.version
        if image.version >= self.newest.version:
            self.newest = image

    def follow(self, image: MetadataImage) -> None:
        """Has a newer image applied soon; if several come in the meantime, only the last."""
        if image.version > self.newest.version:
            self.newest = image
            self.is_newer.set()

    async def applied(self, version: int) -> None:
        """Returns when an image of that version, or a later one, is completely applied."""
        async with self._applied:
            await self._applied.wait_for(lambda: self._applied_version >= version)

    async def set_applied(self, version: int) -> None:
        self._applied_version = max(self._applied_version, version)
        async with self._applied:
            self._applied.notify_all()
