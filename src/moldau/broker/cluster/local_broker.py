"""The identity of this broker: its id and epoch, its addresses, and its current configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from moldau.config.broker import CLUSTER_WIDE, BrokerConfig
from moldau.errors import ConfigError
from moldau.metadata.image import MetadataImage
from moldau.metadata.stores.store import Candidate, ControllerTerm

logger = logging.getLogger(__name__)

NOT_REGISTERED = -1


class LocalBroker:
    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        """With the dynamic values of the newest metadata. Read it each time instead of keeping it."""
        self.node_id = config.node_id
        self.broker_epoch = NOT_REGISTERED
        """Given by the controller when it registered this process."""
        self.advertised: dict[str, tuple[str, int]] = {}
        """Where clients of each listener reach this broker; known once the listeners are bound."""
        self._rejected_overrides: tuple[Mapping[str, str], Mapping[str, str]] | None = None

    @property
    def inter_broker_listener(self) -> str:
        name = self.config.inter_broker_listener_name
        return name.upper() if name is not None else self.config.listeners[0].name

    @property
    def inter_broker_address(self) -> tuple[str, int]:
        """Where other brokers reach this one."""
        return self.advertised[self.inter_broker_listener]

    @property
    def candidate(self) -> Candidate:
        return Candidate(self.node_id, *self.inter_broker_address)

    def is_elected(self, term: ControllerTerm) -> bool:
        """Whether this broker is that controller. The same id at another address is a broker that took this id."""
        return term[1:] == self.candidate

    @property
    def endpoints(self) -> tuple[tuple[str, str, int, str], ...]:
        """Name, host, port and security protocol of each listener, as others reach it."""
        protocols = {listener.name: listener.protocol for listener in self.config.listeners}
        return tuple((name, host, port, protocols[name]) for name, (host, port) in self.advertised.items())

    def apply_overrides(self, image: MetadataImage) -> bool:
        """Applies the dynamic broker configuration of `image`; True when that changed something.

        Stored values were checked, but perhaps against another server.properties. Invalid ones are left out, and the
        broker keeps running. Values in which all brokers have to agree always apply.
        """
        own, cluster = wanted = (image.broker_config(self.node_id), image.broker_config(None))
        if wanted in ((self.config.dynamic, self.config.dynamic_default), self._rejected_overrides):
            return False
        before = self.config
        try:
            self.config = before.with_overrides(own, cluster)
        except ConfigError as error:
            self._rejected_overrides = wanted
            logger.error(
                "the dynamic broker configuration is invalid, keeping the previous one", extra={"why": str(error)}
            )
            agreed = {key: cluster[key] for key in CLUSTER_WIDE if key in cluster}
            self.config = before.with_overrides(before.dynamic, {**before.dynamic_default, **agreed})
        return self.config is not before
