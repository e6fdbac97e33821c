"""Waits at the brokers for new records, so that an idle query costs next to nothing and still notices them at once.

Spark asks a source that had nothing new again after 10 ms (`spark.sql.streaming.pollingDelay`), which costs a sixth of
a core. With the option `idleWaitMs` the source does not answer until there is something new, or this long: it sends
Fetch requests for the end of each partition, which brokers hold back until then.

A query asks its sources one after the other, so a source that waits holds up the others. `idleWaitTopics` names their
topics: the one source of a query that waits also waits for those. It does not know how far they have been read; what it
knows is whether records have come since it last looked. So it waits only once nothing has come anywhere between three
looks: by then the others have seen all there is, and Spark has run the batch without data in which windows close.
"""

from __future__ import annotations

import select
import time
from functools import partial

from moldau.client.cluster import ClusterClient
from moldau.client.connection import Connection
from moldau.client.small_fetches import LAST_VERSION_WITH_NAMES, small_fetch
from moldau.errors import KafkaError
from moldau.spark.connections import borrowed
from moldau.spark.source.offsets import Offsets
from moldau.spark.source.planning import TopicOffsets
from moldau.spark.source.read_options import ReadOptions, Subscription
from moldau.wire.apis import ApiKey

_LOOKS = 3
_ANSWER_GRACE_MS = 200  # of a broker that is busy; it answers when the time is over


class IdleWait:
    """Holds no connection, so it can be pickled."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        others = options._replace(subscription=Subscription(topics=options.idle_wait_topics))
        self._others = TopicOffsets(others) if options.idle_wait_topics else None
        self._seen: Offsets = {}
        self._looks = 0  # that saw the same ends

    def wait(self, ends: Offsets) -> bool:
        """Whether there may be something new, now that all was read up to `ends`."""
        if not self._options.idle_wait_ms:
            return False
        seen = {**(self._others.ends_now() if self._others else {}), **ends}
        self._looks = self._looks + 1 if seen == self._seen else 1
        self._seen = seen
        if self._looks < _LOOKS or not seen:
            return False
        try:
            with borrowed(self._options.client) as cluster:
                return self._wait_at(cluster, seen)
        except (KafkaError, OSError):
            return True  # who looks again tells whether there is a problem

    def _wait_at(self, cluster: ClusterClient, ends: Offsets) -> bool:
        wait_ms = self._options.idle_wait_ms
        asked: dict[int, tuple[Connection, int, int]] = {}
        for leader, partitions in cluster.leaders(ends).items():
            connection = cluster.broker(leader)
            version = min(connection.version_of(ApiKey.FETCH) or 0, LAST_VERSION_WITH_NAMES)
            offsets = {tp: ends[tp] for tp in partitions}
            build = partial(small_fetch, offsets=offsets, isolation=self._options.isolation, wait_ms=wait_ms)
            number = connection.post(ApiKey.FETCH, version, build)
            asked[connection.fileno()] = (connection, version, number)
        if not asked:
            time.sleep(wait_ms / 1000)
            return False
        is_new = _receive_all(asked, time.monotonic() + (wait_ms + _ANSWER_GRACE_MS) / 1000)
        if asked:
            cluster.close()  # answers are still to come
        return is_new


def _receive_all(asked: dict[int, tuple[Connection, int, int]], deadline: float) -> bool:
    """Take answers out of `asked`, all of them or up to the first that has records or an error; whether one has."""
    readable = select.poll()
    for descriptor in asked:
        readable.register(descriptor, select.POLLIN)
    while asked and (left_s := deadline - time.monotonic()) > 0:
        for descriptor, _ in readable.poll(left_s * 1000):
            readable.unregister(descriptor)
            connection, version, number = asked.pop(descriptor)
            answer = connection.receive(ApiKey.FETCH, version, number)
            found = [partition for topic in answer.responses for partition in topic.partitions]
            if any(partition.error_code or partition.records for partition in found):
                return True
    return False
