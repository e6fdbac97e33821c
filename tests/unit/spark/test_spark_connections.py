"""Connections are kept for the next task, and never shared."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from moldau.client.config import ClientConfig
from moldau.spark import connections
from moldau.spark.connections import borrowed, close_idle

HERE = ClientConfig((("localhost", 1),))
THERE = ClientConfig((("localhost", 2),))


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    close_idle()
    yield
    close_idle()


def test_a_cluster_given_back_is_lent_again_to_the_same_configuration_only() -> None:
    with borrowed(HERE) as first:
        pass
    with borrowed(THERE) as elsewhere, borrowed(HERE) as second:
        assert second is first
        assert elsewhere is not first


def test_a_cluster_is_lent_to_one_at_a_time() -> None:
    with borrowed(HERE) as first, borrowed(HERE) as second:
        assert second is not first


def test_a_cluster_is_not_lent_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="half an answer"), borrowed(HERE) as first:
        raise ValueError("half an answer")
    with borrowed(HERE) as second:
        assert second is not first


def test_no_more_are_kept_than_a_few() -> None:
    def deep(levels: int) -> None:
        with borrowed(HERE):
            if levels:
                deep(levels - 1)

    deep(20)
    assert len(connections._idle[HERE]) == connections.IDLE_CLUSTERS_MAX


def test_a_forked_process_has_none_and_leaves_its_parents_open() -> None:
    class Spoken:
        def __init__(self) -> None:
            self.near, self.far = socket.socketpair()

        def close(self) -> None:
            self.near.close()

    spoken = Spoken()
    connections._idle[HERE] = [spoken]  # type: ignore[list-item]
    child = os.fork()
    if child == 0:
        os._exit(0 if not connections._idle and spoken.near.fileno() == -1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    spoken.near.send(b"still open")
    assert spoken.far.recv(100) == b"still open"
    spoken.far.close()
