"""Connections that outlive a task: Spark uses a Python worker for many tasks, and each would connect anew.

    with borrowed(config) as cluster:
        ...

A cluster is one borrower's alone until it is given back, and nobody's after an error, since an answer may still
be on its way to it. A forked process starts with none: a socket shared with its parent would mix their answers.
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

# A wrong address should be told soon; a broker that answered before is waited for as long as a call may take.
_FIRST_CONTACT_MS_MAX = 10_000
_BACKOFF_MS_MAX = 1_000

REACH_HINT = "check the option kafka.bootstrap.servers, and that the broker runs"

R = TypeVar("R")

logger = logging.getLogger(__name__)
_idle: dict[ClientConfig, list[ClusterClient]] = {}


@contextmanager
def borrowed(config: ClientConfig) -> Iterator[ClusterClient]:
    """A cluster whose connections, where they are still open, were used before."""
    cluster = _take(config) or ClusterClient(config)
    try:
        cluster.close_lost()
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _give_back(config, cluster)


def ask_patiently(config: ClientConfig, call: Callable[[ClusterClient], R], *, reached: bool = False) -> R:
    """What `call` returns. While no broker can be reached it is called again, until that takes too long."""
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
                logger.warning("%s; trying again for %.0f s", error.message, patience_ms / 1000)
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
