"""Brokers that were lost a moment ago: Metadata responses still list them.

Here a broker whose port refuses connections is fenced within milliseconds; Apache Kafka takes a session for that. A
client drops a broker that is no longer listed: librdkafka 2.10 and later ends its connection for good and, where
that broker coordinated the group of an open transaction, waits for it in `send_offsets_to_transaction` long after it
is back. So Metadata goes on listing a lost broker for one session, as Kafka's clients are used to; it leads nothing
meanwhile. A broker that was shut down in order is not listed any more, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Callable

from moldau.broker.cluster.local_broker import LocalBroker
from moldau.metadata.image import MetadataImage


class LostBrokers:
    def __init__(self, me: LocalBroker, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        self._me = me
        self._now_s = now_s
        self._until_s: dict[int, float] = {}

    def begin(self, image: MetadataImage) -> None:
        """It is not known when the fenced brokers of the first image were lost: the clients of a broker that was
        killed together with another one ask the first broker that is back."""
        for broker_id, broker in image.brokers.items():
            if broker.fenced:
                self._lost(broker_id)

    def follow(self, before: MetadataImage, after: MetadataImage) -> None:
        for broker_id in before.brokers.keys() - after.brokers.keys():
            self._until_s.pop(broker_id, None)
        for broker_id, broker in after.brokers.items():
            was = before.brokers.get(broker_id)
            if not broker.fenced:
                self._until_s.pop(broker_id, None)
            elif was is not None and not was.fenced and not was.in_controlled_shutdown:
                self._lost(broker_id)

    def _lost(self, broker_id: int) -> None:
        self._until_s[broker_id] = self._now_s() + self._me.config.broker_session_timeout_ms / 1000

    @property
    def listed(self) -> frozenset[int]:
        if not self._until_s:
            return frozenset()
        now_s = self._now_s()
        self._until_s = {broker_id: until_s for broker_id, until_s in self._until_s.items() if until_s > now_s}
        return frozenset(self._until_s)
