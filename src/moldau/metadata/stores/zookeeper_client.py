"""A session with a ZooKeeper ensemble: the few requests that the store needs, and what can become of them.

The client is kazoo, which reconnects by itself. An answer that does not come leaves in doubt whether the request was
carried out: `ConnectionLossError`, and the caller finds out. A transaction that ZooKeeper refuses did nothing:
`RefusedError`.

A server whose machine vanished neither answers nor refuses. kazoo alone would wait for a connection as long as a
session lasts, and two thirds of that for an answer. Here each attempt to connect gets a share of the session, the
servers are tried in turn, and a server that leaves a request unanswered for a sixth of the session is left for the
next one. The session itself goes on with whichever server answers.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from moldau.errors import ConfigError, StorageError

_TRIES_PER_SESSION = 4
_CONNECT_MIN_S = 1.2
"""A lost SYN is sent again after one second."""
_ANSWERS_PER_SESSION = 6
_ANSWER_MIN_S = 1.0
"""However short the session: the disk of a busy server may take so long."""
_SHUT_BOTH = 2
# What it takes to end a session that works; one that waits for a silent server must not keep a broker from stopping.
_STOP_S = 2.0
# A server that comes back is found within a second, and 100 brokers do not flood it.
_RECONNECT = {"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0}


class ConnectionLossError(StorageError):
    """ZooKeeper did not answer."""


class _NoNodeError(StorageError):
    """There is no such node."""


class RefusedError(StorageError):
    """ZooKeeper refused a transaction, because of the operation at `position`; nothing of it was done."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(message)
        self.position = position


class Node(NamedTuple):
    data: bytes
    version: int
    owner: int
    """The session whose end removes it; 0 for one that stays."""


class Check(NamedTuple):
    path: str
    version: int


class Create(NamedTuple):
    path: str
    data: bytes
    is_ephemeral: bool = False


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int


class Delete(NamedTuple):
    path: str


Operation = Check | Create | SetData | Delete


class ZooKeeperClient:
    def __init__(
        self, connect: str, *, session_timeout_s: float, connection_timeout_s: float, on_state: Callable[[], None]
    ) -> None:
        """`on_state` is called, from a thread of the client, when contact was lost or is there again."""
        self.address = connect
        self._hosts, _, chroot = connect.partition("/")
        self._root = "/" + chroot.strip("/") if chroot.strip("/") else ""
        self._session_timeout_s = session_timeout_s
        self._connection_timeout_s = connection_timeout_s
        self._on_state = on_state
        self._client: Any = None
        self._connected: Any = None
        self._socket: Any = None

    def open(self) -> None:
        try:
            # Only clusters across machines need it.
            from kazoo.client import KazooClient
            from kazoo.exceptions import ConfigurationError
            from kazoo.handlers.threading import SequentialThreadingHandler
        except ImportError:
            raise ConfigError(
                "zookeeper.connect needs the package kazoo: run pip install '.[zookeeper]' in a checkout of Moldau"
            ) from None
        handler = SequentialThreadingHandler()
        handler.create_connection = self._connecting(handler.create_connection)
        try:
            # It gives each address an equal share of the session's time-out. A server that starts may accept a
            # connection and never answer: named often, it is asked again before the session ends.
            hosts = self._hosts.split(",")
            random.shuffle(hosts)  # once: in turn, a server that does not answer is not asked twice in a row
            client = KazooClient(
                ",".join(hosts * _TRIES_PER_SESSION),
                timeout=self._session_timeout_s,
                connection_retry=dict(_RECONNECT),
                randomize_hosts=False,
                handler=handler,
                logger=_kazoo_logger(),
            )
        except (ConfigurationError, ValueError) as error:
            raise ConfigError(
                f"zookeeper.connect={self.address} is invalid ({error}); expected host:port,host:port/chroot"
            ) from error
        client.add_listener(lambda _: self._on_state())
        self._connected = client.start_async()
        if not self._connected.wait(self._connection_timeout_s):
            _stop(client)
            raise StorageError(
                f"no ZooKeeper server of zookeeper.connect={self.address} responded within "
                f"{self._connection_timeout_s:g} s (zookeeper.connection.timeout.ms): check that the "
                "ensemble is running and reachable"
            )
        self._client = client

    def _connecting(self, connect: Callable[..., Any]) -> Callable[..., Any]:
        """kazoo's way to connect, within a share of the session."""
        attempts = _TRIES_PER_SESSION * (self._hosts.count(",") + 1)
        attempt_s = max(_CONNECT_MIN_S, self._session_timeout_s / attempts)

        def within_share(*args: Any, **options: Any) -> Any:
            self._socket = connect(*args, **{**options, "timeout": attempt_s})
            return self._socket

        return within_share

    def close(self) -> None:
        if self._client is not None:
            _stop(self._client)

    @property
    def is_connected(self) -> bool:
        return bool(self._client.connected)

    @property
    def session_id(self) -> int:
        return int((self._client.client_id or (0,))[0])

    def wait_until_connected(self, timeout_s: float) -> bool:
        return bool(self._connected.wait(timeout_s))

    def make_path(self, path: str) -> None:
        self._answer(self._client.ensure_path_async(self._root + path))

    def get(self, path: str, on_change: Callable[[object], None] | None = None) -> Node | None:
        """None where there is no such node; `on_change` is called once, when that or its data has changed."""
        node = self._node(self._client.get_async(self._root + path, watch=on_change))
        if (
            node is None
            and on_change is not None
            and self._answer(self._client.exists_async(self._root + path, watch=on_change))
        ):
            return self.get(path, on_change)
        return node

    def get_all(self, paths: Iterable[str]) -> list[Node | None]:
        return [self._node(asked) for asked in [self._client.get_async(self._root + path) for path in paths]]

    def sync(self) -> None:
        """Reads that follow see everything that was written before, whichever server answers them."""
        self._answer(self._client.sync_async(self._root or "/"))

    def children(self, path: str) -> list[str]:
        return sorted(self._answer(self._client.get_children_async(self._root + path)))

    def commit(self, operations: Sequence[Operation]) -> None:
        """All of `operations` or none."""
        transaction = self._client.transaction()
        for operation in operations:
            match operation:
                case Check(path, version):
                    transaction.check(self._root + path, version)
                case Create(path, data, is_ephemeral):
                    transaction.create(self._root + path, data, ephemeral=is_ephemeral)
                case SetData(path, data, version):
                    transaction.set_data(self._root + path, data, version)
                case Delete(path):
                    transaction.delete(self._root + path)
        results = self._answer(transaction.commit_async())
        if any(isinstance(result, Exception) for result in results):
            # Those before the one that failed are "rolled back", those behind it "inconsistent".
            names = [type(result).__name__ for result in results]
            position = next(
                i for i, name in enumerate(names) if name not in ("RolledBackError", "RuntimeInconsistency")
            )
            raise RefusedError(f"ZooKeeper rejected {operations[position][0]}: {names[position]}", position)

    def _node(self, asked: Any) -> Node | None:
        try:
            data, status = self._answer(asked)
        except _NoNodeError:
            return None
        return Node(data, status.version, status.ephemeralOwner)

    def _answer(self, asked: Any) -> Any:
        from kazoo.exceptions import (
            ConnectionClosedError,
            ConnectionLoss,
            KazooException,
            NoNodeError,
            SessionExpiredError,
        )
        from kazoo.handlers.threading import KazooTimeoutError

        deadline_s = time.monotonic() + self._session_timeout_s
        answer_s = max(_ANSWER_MIN_S, self._session_timeout_s / _ANSWERS_PER_SESSION)
        try:
            while True:
                connection = self._socket
                try:
                    return asked.get(timeout=answer_s)
                except KazooTimeoutError:
                    if time.monotonic() > deadline_s:
                        raise
                    if self._client.connected and connection is self._socket:
                        _hang_up(connection)  # what waits for it ends with ConnectionLoss
        except (ConnectionLoss, ConnectionClosedError, SessionExpiredError, KazooTimeoutError) as error:
            raise ConnectionLossError(f"ZooKeeper ({self.address}) does not respond: {type(error).__name__}") from error
        except NoNodeError as error:
            raise _NoNodeError(
                "a node of this cluster is missing in ZooKeeper: check whether it was removed"
            ) from error
        except KazooException as error:
            raise StorageError(f"ZooKeeper ({self.address}) returned an error: {error!r}") from error


def _kazoo_logger() -> logging.Logger:
    """It reports every attempt to connect, many times a second; the election says what matters, once a minute."""
    logger = logging.getLogger(f"{__name__}.kazoo")
    if not logging.getLogger(__name__).isEnabledFor(logging.DEBUG):
        logger.setLevel(logging.ERROR)
    return logger


def _hang_up(connection: Any) -> None:
    """From another thread than kazoo's, which then finds its socket at its end."""
    with contextlib.suppress(OSError):
        connection.shutdown(_SHUT_BOTH)


def _stop(client: Any) -> None:
    def stop() -> None:
        client.stop()
        client.close()

    thread = threading.Thread(target=stop, name="moldau-zookeeper-stop", daemon=True)
    thread.start()
    thread.join(_STOP_S)
