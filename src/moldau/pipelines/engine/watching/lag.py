"""How far queries are behind their topics: in records, and in seconds.

Spark reports the end of each partition when it plans a batch, so in most polls the lag costs nothing. Brokers are asked
while there is lag (when was the first unread record written?) and while no batch completes (where does the topic end
by now?), in a thread of its own: a broker that does not answer holds nobody up.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from moldau.client.admin import list_offsets
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig
from moldau.client.record_times import record_timestamps
from moldau.clocks import Clock, monotonic_ms
from moldau.errors import KafkaError, MoldauError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.connectors.topic import TopicConnector, source_options
from moldau.pipelines.engine.queries import QueryPlan, Settings, read_request
from moldau.spark.options import Options
from moldau.spark.source.read_options import ReadOptions, Subscription
from moldau.wire.constants import LATEST, IsolationLevel
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

PARTITIONS_MAX = 50
"""Records looked at per question: of the partitions that lag most."""
_TIMEOUT_MS = 3_000
_PAUSE_AFTER_ERROR_MS = 10_000

Positions = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Lag:
    records: int | None = None  # None: not known
    oldest_ms: int | None = None  # timestamp of the first unread record


@dataclass(frozen=True)
class Topics:
    """Topics of a query in one cluster."""

    client: ClientConfig
    isolation: IsolationLevel
    subscription: Subscription

    def __contains__(self, key: TopicPartition) -> bool:
        wanted = self.subscription
        if wanted.pattern is not None:
            return re.search(wanted.pattern, key.topic) is not None
        return key.topic in wanted.topics or key in wanted.partitions


def topics_of(plan: QueryPlan, settings: Settings) -> tuple[Topics, ...]:
    """The topics that a query reads, of all its sources."""
    no_session = cast("SparkSession", None)
    found = []
    for source in plan.sources:
        if isinstance(connector(source.connector, plan.pipeline.folder), TopicConnector):
            options = source_options(read_request(no_session, plan.pipeline, source, settings, query=plan.name))
            read = ReadOptions.for_stream(Options(options))
            client = read.client._replace(
                client_id="moldau-lag",
                request_timeout_ms=_TIMEOUT_MS,
                api_timeout_ms=_TIMEOUT_MS,
                connection_timeout_ms=_TIMEOUT_MS,
            )
            found.append(Topics(client, read.isolation, read.subscription))
    return tuple(found)


class LagReader:
    """Used by one thread, which never waits."""

    def __init__(self, clock: Clock = monotonic_ms) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "moldau-lag")
        self._asked: set[Hashable] = set()
        self._paused: dict[Hashable, int] = {}  # until when
        self._found: dict[Hashable, Lag] = {}
        # Of the thread that asks:
        self._clusters: dict[ClientConfig, ClusterClient] = {}
        self._timestamps: dict[Hashable, dict[tuple[TopicPartition, int], int | None]] = {}

    def lag(
        self, key: Hashable, topics: Iterable[Topics], positions: Positions, ends: Positions, *, is_stale: bool
    ) -> Lag:
        """The lag as far as it is known now; `key` is the query. `is_stale`: the ends are no longer true."""
        if not positions:
            return Lag()
        records = sum(max(ends.get(each, 0) - position, 0) for each, position in positions.items())
        if not is_stale and records == 0:
            self._found.pop(key, None)
            return Lag(0)
        if key not in self._asked and self._clock() >= self._paused.get(key, 0):
            self._asked.add(key)
            self._thread.submit(self._ask, key, tuple(topics), dict(positions), {} if is_stale else dict(ends))
        found = self._found.get(key, Lag(records))
        return found if is_stale else Lag(records, found.oldest_ms)

    def close(self) -> None:
        self._thread.submit(self._close_clusters)
        self._thread.shutdown(wait=False)

    # What follows runs in the thread that asks.

    def _ask(self, key: Hashable, topics: tuple[Topics, ...], positions: Positions, ends: Positions) -> None:
        try:
            self._found[key] = self._look_up(key, topics, positions, ends)
        except (MoldauError, OSError) as error:
            logger.debug("the lag of %s is not known: %s", key, error)
            self._paused[key] = self._clock() + _PAUSE_AFTER_ERROR_MS
            for each in topics:
                self._forget(each.client)
        except Exception:
            logger.exception("internal error while looking up the lag (please report it)")
        finally:
            self._asked.discard(key)

    def _look_up(self, key: Hashable, topics: tuple[Topics, ...], positions: Positions, ends: Positions) -> Lag:
        records, oldest, left = 0, [], dict(positions)
        for each in topics:
            own = {partition: left.pop(partition) for partition in list(left) if partition in each}
            if each.client not in self._clusters:
                self._clusters[each.client] = ClusterClient(each.client)
            cluster = self._clusters[each.client]
            cluster.close_lost()
            lags = _lags(cluster, each.isolation, own, ends)
            records += sum(lags.values())
            behind = sorted((partition for partition in own if lags.get(partition)), key=lags.__getitem__, reverse=True)
            wanted = {partition: own[partition] for partition in behind[:PARTITIONS_MAX]}
            oldest += self._written_at(key, cluster, each.isolation, wanted)
        return Lag(records, min(oldest, default=None))

    def _written_at(
        self, key: Hashable, cluster: ClusterClient, isolation: IsolationLevel, wanted: Positions
    ) -> list[int]:
        """A record's timestamp never changes: while a position stays, it is asked for once."""
        known = self._timestamps.get(key, {})
        new = {partition: position for partition, position in wanted.items() if (partition, position) not in known}
        answers = record_timestamps(cluster, new, isolation) if new else {}
        known |= {
            (partition, new[partition]): answer
            for partition, answer in answers.items()
            if not isinstance(answer, KafkaError)
        }
        self._timestamps[key] = {item: known[item] for item in wanted.items() if item in known}
        return [timestamp for timestamp in self._timestamps[key].values() if timestamp is not None]

    def _forget(self, client: ClientConfig) -> None:
        cluster = self._clusters.pop(client, None)
        if cluster is not None:
            with suppress(OSError):
                cluster.close()

    def _close_clusters(self) -> None:
        for client in list(self._clusters):
            self._forget(client)


def _lags(
    cluster: ClusterClient, isolation: IsolationLevel, positions: Positions, ends: Positions
) -> dict[TopicPartition, int]:
    """Offsets between the positions and the ends, which are asked for where they are not given."""
    asked = dict.fromkeys((each for each in positions if each not in ends), LATEST)
    answers = list_offsets(cluster, asked, isolation) if asked else {}
    now = {each: answer.offset for each, answer in answers.items() if not isinstance(answer, KafkaError)}
    errors = [answer for answer in answers.values() if isinstance(answer, KafkaError)]
    if errors and not now:
        raise errors[0]
    both = {**ends, **now}
    return {each: max(both[each] - position, 0) for each, position in positions.items() if each in both}
