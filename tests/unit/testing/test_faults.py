"""A proxy passes on, holds, delays, resets, and refuses where its target does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from moldau.testing.faults import Proxy

TIMEOUT_S = 10.0


class Echo:
    """Listens until it is closed, and sends back what it gets."""

    def __init__(self, port: int = 0) -> None:
        self._server = socket.create_server(("127.0.0.1", port))
        self.port: int = self._server.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self._connections.append(connection)
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    @staticmethod
    def _echo(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := connection.recv(4096):
                connection.sendall(data)

    def close(self) -> None:
        for each in (self._server, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as between:
        yield between


def request(client_id: bytes) -> bytes:
    head = struct.pack(">hhih", 18, 0, 1, len(client_id)) + client_id
    return struct.pack(">i", len(head)) + head


def connect(port: int) -> socket.socket:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        else:
            return connection


def refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:  # it stops listening at this moment
        return False
    return False


def call(port: int, client_id: bytes = b"client") -> socket.socket:
    connection = connect(port)
    sent = request(client_id)
    connection.sendall(sent)
    assert receive(connection, len(sent)) == sent
    return connection


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (chunk := connection.recv(size - len(data))):
        data += chunk
    return data


def test_bytes_pass_in_both_directions(proxy: Proxy) -> None:
    with call(proxy.port) as connection:
        sent = bytes(range(256)) * 2000
        threading.Thread(target=connection.sendall, args=(sent,)).start()
        assert receive(connection, len(sent)) == sent


def test_what_was_cut_arrives_after_healing(proxy: Proxy) -> None:
    with call(proxy.port) as connection:
        proxy.cut()
        connection.sendall(b"held")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(4)
        proxy.heal()
        connection.settimeout(TIMEOUT_S)
        assert receive(connection, 4) == b"held"


def test_only_the_named_caller_is_cut(proxy: Proxy) -> None:
    with call(proxy.port, b"broker-1-fetch") as cut, call(proxy.port, b"broker-10") as other:
        proxy.cut("broker-1")
        cut.sendall(b"held")
        other.sendall(b"passes")
        assert receive(other, 6) == b"passes"
        cut.settimeout(0.1)
        with pytest.raises(TimeoutError):
            cut.recv(4)


def test_delayed_bytes_come_late_and_in_order(proxy: Proxy) -> None:
    with call(proxy.port) as connection:
        proxy.delay(0.1)
        started = time.monotonic()
        connection.sendall(b"late")
        assert receive(connection, 4) == b"late"
        assert time.monotonic() - started >= 0.2
        connection.sendall(b"first")
        proxy.heal()
        connection.sendall(b"second")
        assert receive(connection, 11) == b"firstsecond"


def test_a_reset_ends_connections_and_new_ones_are_taken(proxy: Proxy) -> None:
    with call(proxy.port) as connection:
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1)
    call(proxy.port).close()


def test_it_refuses_while_its_target_is_away(proxy: Proxy, echo: Echo) -> None:
    connection = call(proxy.port)
    echo.close()
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""
    connection.close()
    deadline = time.monotonic() + TIMEOUT_S
    while not refused(proxy.port):
        assert time.monotonic() < deadline
    back = Echo(echo.port)
    call(proxy.port).close()
    back.close()
