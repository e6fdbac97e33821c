"""Connections that outlive a task: Spark uses a Python worker for many tasks, and each would connect anew.

    with borrowed(config) as cluster:
        ...

A cluster is one borrower's alone until it is given back, and nobody's after an error, since an answer may still
be on its way to it. A forked process starts with none: a socket shared with its parent would mix their answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.client.cluster import Cluster
from moldau.client.config import ClientConfig

# Per process and configuration: a worker reads one range or writes one partition at a time, a driver a few.
IDLE_CLUSTERS_MAX = 4

_idle: dict[ClientConfig, list[Cluster]] = {}


@contextmanager
def borrowed(config: ClientConfig) -> Iterator[Cluster]:
    """A cluster whose connections, where they are still open, were used before."""
    cluster = _take(config) or Cluster(config)
    try:
        cluster.drop_lost()
        yield cluster
    except BaseException:
        cluster.close()
        raise
    _give_back(config, cluster)


def close_idle() -> None:
    while _idle:
        _, clusters = _idle.popitem()
        for cluster in clusters:
            cluster.close()


def _take(config: ClientConfig) -> Cluster | None:
    try:
        return _idle[config].pop()
    except LookupError:
        return None


def _give_back(config: ClientConfig, cluster: Cluster) -> None:
    clusters = _idle.setdefault(config, [])
    if len(clusters) < IDLE_CLUSTERS_MAX:
        clusters.append(cluster)
    else:
        cluster.close()


# In the child these are copies of the sockets: the parent's stay open.
os.register_at_fork(after_in_child=close_idle)
