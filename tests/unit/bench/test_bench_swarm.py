"""The swarm of the bench: members go forward with their responses, and after their rests."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from bench.jobs.swarm import Steps, Swarm
from bench.raw import RawConnection


def frame(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def echo(connection: socket.socket) -> None:
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


@pytest.fixture
def echo_address() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_members_take_their_steps_side_by_side_until_each_has_come_to_its_end(echo_address: str) -> None:
    heard: list[str] = []

    def member(name: str, steps: int) -> Steps:
        for number in range(steps):
            response = yield 0.0, frame(f"{name}{number}")
            heard.append(bytes(response).decode())

    swarm = Swarm()
    with RawConnection(echo_address) as first, RawConnection(echo_address) as second:
        swarm.add(first, member("a", 3))
        swarm.add(second, member("b", 2))
        swarm.run_until(lambda: swarm.is_idle)
    assert sorted(heard) == ["a0", "a1", "a2", "b0", "b1"]


def test_a_resting_member_sends_only_when_its_rest_is_over(echo_address: str) -> None:
    arrived_at: list[float] = []

    def member() -> Steps:
        yield 0.05, frame("rested")
        arrived_at.append(time.perf_counter())

    swarm = Swarm()
    with RawConnection(echo_address) as connection:
        started = time.perf_counter()
        swarm.add(connection, member())
        swarm.run_until(lambda: bool(arrived_at))
    assert arrived_at[0] - started >= 0.05
