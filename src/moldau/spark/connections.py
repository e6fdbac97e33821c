"""Connections that outlive a task: Spark runs many tasks in one Python worker, and each would have to connect again.

    with borrowed(config) as cluster:
        ...

Only one borrower uses a cluster at a time. After an error it is closed, because a response may still be on its way. A
forked process starts without connections: a socket shared with its parent would mix up their responses.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig
from moldau.errors import UNREACHABLE, KafkaError

# Per process and configuration: a worker reads one range or writes one partition at a time, a driver a few.
IDLE_CLUSTERS_MAX = 4

# Report a wrong address soon; wait for a broker that answered before as long as a call may take.
_FIRST_CONTACT_MS_MAX = 10_000
_BACKOFF_MS_MAX = 1_000

REACH_HINT = "check the option kafka.bootstrap.servers, and that the broker runs"

R = TypeVar("R")

logger = logging.getLogger(__name__)
_idle: dict[ClientConfig, list[ClusterClient]] = {}


@contextmanager
def borrowed(config: ClientConfig) -> Iterator[ClusterClient]:
    """A cluster, with connections that are still open from earlier use."""
    cluster = _take(config) or ClusterClient(config)
    try:
        cluster.close_lost()
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _give_back(config, cluster)


def ask_patiently(config: ClientConfig, call: Callable[[ClusterClient], R], *, reached: bool = False) -> R:
    """Return what `call` returns. Repeat it while no broker can be reached, until a time limit."""
    patience_ms = config.api_timeout_ms if reached else min(config.api_timeout_ms, _FIRST_CONTACT_MS_MAX)
    deadline = time.monotonic() + patience_ms / 1000
    backoff_ms = config.retry_backoff_ms
    while True:
        try:
            with borrowed(config) as cluster:
                return call(cluster)
        except KafkaError as error:
            if error.code not in UNREACHABLE:
                raise
            if time.monotonic() >= deadline:
                raise KafkaError(error.code, f"{error.message}; {REACH_HINT}") from error
            if backoff_ms == config.retry_backoff_ms:
                # Whoever called gets an error when the time is up, so this is for those who look for more.
                logger.info("%s; trying again for %.0f s", error.message, patience_ms / 1000)
        time.sleep(backoff_ms / 1000)
        backoff_ms = min(2 * backoff_ms, _BACKOFF_MS_MAX)


def close_idle() -> None:
    while _idle:
        _, clusters = _idle.popitem()
        for cluster in clusters:
            cluster.close()


def _take(config: ClientConfig) -> ClusterClient | None:
    try:
        return _idle[config].pop()
    except LookupError:
        return None


def _give_back(config: ClientConfig, cluster: ClusterClient) -> None:
    clusters = _idle.setdefault(config, [])
    if len(clusters) < IDLE_CLUSTERS_MAX:
        clusters.append(cluster)
    else:
        cluster.close()


# In the child these are copies of the sockets: the parent's stay open.
os.register_at_fork(after_in_child=close_idle)
