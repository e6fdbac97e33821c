"""A bad network for tests: bytes that stop, come late, or end in a reset, between brokers and to their clients.

    cluster = Cluster(3)
    with Network(cluster) as network, cluster:       # clients start at network.bootstrap_servers
        network.cut(cluster.brokers[0])              # from everybody, silently, as a cable that was pulled
        network.cut_link(follower, leader)           # what the one asks the other
        network.delay(0.1)                           # seconds, each way
        network.reset()                              # every connection, now
        network.heal()

Kills and pauses are the brokers' own: `cluster.brokers[0].kill()`.

A `Proxy` is a port that passes on to another. What was cut stays where it is and arrives after `heal`, as TCP has it;
who calls is known by the client id of the first request. Where nobody listens behind it, nobody listens before it
either: a dead broker's port refuses connections, as it does without a proxy.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from moldau.local_cluster import HOST, BrokerProcess, Cluster

CHUNK_BYTES = 64 * 1024
CHUNKS_MAX = 64
"""On their way in one direction; more than that the sender has to keep."""
_PROBE_S = 0.02
_HEADER = struct.Struct(">ihhih")
_CLIENT_ID_MAX = 1000
_RESET = struct.pack("ii", 1, 0)


class _Closing:
    """Closed at the end of its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        raise NotImplementedError


class Proxy(_Closing):
    """Passes on from `port` to `target_port`, in a thread of its own, until `close`."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        # Held as long as the proxy lasts, and not listening: nobody else is given it while the target is away.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((HOST, 0))
        self.port: int = self._reserved.getsockname()[1]
        self._cut: set[str] = set()
        self._delay_s = 0.0
        self._links: set[_Link] = set()
        self._runner = asyncio.Runner()
        self._loop = self._runner.get_loop()
        self._closing = asyncio.Event()
        self._changed = asyncio.Event()
        self._gone = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=f"proxy-{self.port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def cut(self, caller: str = "") -> None:
        """Nothing passes in either direction, for callers whose client id is `caller` or begins with it and a dash."""
        self._call(lambda: self._cut.add(caller))

    def delay(self, seconds: float) -> None:
        """Each way; what is on its way keeps its order."""
        self._call(lambda: setattr(self, "_delay_s", seconds))

    def heal(self) -> None:
        def undo() -> None:
            self._cut.clear()
            self._delay_s = 0.0

        self._call(undo)

    def reset(self) -> None:
        """Every connection ends now, what is on its way is lost; new ones are taken."""
        self._call(self._reset_all)

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
        self._reserved.close()

    def holds(self, client_id: str) -> bool:
        return any(not caller or client_id == caller or client_id.startswith(f"{caller}-") for caller in self._cut)

    # -- inside the thread

    def _call(self, change: Callable[[], object]) -> None:
        """Returns when it is so."""

        async def do() -> None:
            change()
            self._changed.set()
            self._changed = asyncio.Event()

        asyncio.run_coroutine_threadsafe(do(), self._loop).result()

    def _reset_all(self) -> None:
        for link in list(self._links):
            link.reset()

    def _run(self) -> None:
        with self._runner:
            self._runner.run(self._serve())

    async def _serve(self) -> None:
        closing = asyncio.ensure_future(self._closing.wait())
        while not closing.done():
            if not await self._target_listens():
                await asyncio.wait([closing], timeout=_PROBE_S)
                continue
            self._gone.clear()
            server = await asyncio.start_server(self._accept, HOST, self.port)
            gone = asyncio.ensure_future(self._gone.wait())
            await asyncio.wait([closing, gone], return_when=asyncio.FIRST_COMPLETED)
            server.close()
            self._reset_all()

    async def _target_listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection(HOST, self.target_port)
        except OSError:
            return False
        writer.close()
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, writer)
        self._links.add(link)
        try:
            await link.run(reader)
        except (OSError, EOFError, asyncio.CancelledError):  # the last at the end of the loop
            pass
        finally:
            self._links.discard(link)
            link.reset()
            if not await self._target_listens():
                self._gone.set()

    async def until_open(self, link: _Link) -> None:
        while self.holds(link.client_id):
            await self._changed.wait()

    @property
    def delay_s(self) -> float:
        return self._delay_s


class _Link:
    """One connection and its other half."""

    def __init__(self, proxy: Proxy, caller: asyncio.StreamWriter) -> None:
        self.client_id = ""
        self._proxy = proxy
        self._writers = [caller]

    async def run(self, from_caller: asyncio.StreamReader) -> None:
        first = await self._first_request(from_caller)
        await self._proxy.until_open(self)
        from_target, to_target = await asyncio.open_connection(HOST, self._proxy.target_port)
        self._writers.append(to_target)
        to_caller = self._writers[0]
        to_target.write(first)
        pumps = [
            asyncio.ensure_future(self._pump(from_caller, to_target)),
            asyncio.ensure_future(self._pump(from_target, to_caller)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _first_request(self, reader: asyncio.StreamReader) -> bytes:
        """As far as the client id, which says who calls."""
        head = await reader.readexactly(_HEADER.size)
        size = _HEADER.unpack(head)[-1]
        name = await reader.readexactly(size) if 0 < size <= _CLIENT_ID_MAX else b""
        self.client_id = name.decode(errors="replace")
        return head + name

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reading goes on while what was read waits for its time."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(CHUNKS_MAX)
        sending = asyncio.ensure_future(self._send(waiting, writer))
        try:
            while data := await reader.read(CHUNK_BYTES):
                await waiting.put((asyncio.get_running_loop().time() + self._proxy.delay_s, data))
            await waiting.put((0.0, b""))
            await sending
        except OSError:
            pass
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _send(self, waiting: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            await self._proxy.until_open(self)
            if not data:
                return
            writer.write(data)
            await writer.drain()

    def reset(self) -> None:
        for writer in self._writers:
            raw = writer.get_extra_info("socket")
            if raw is not None and raw.fileno() >= 0:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()


class Network(_Closing):
    """Proxies for all connections of a cluster: between its brokers and from its clients.

    Create it before the cluster starts: it gives each broker a second listener for the other brokers and advertises the
    addresses of the proxies. Clients must connect to `bootstrap_servers`.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._brokers = cluster.brokers
        self.for_clients = {each.node_id: Proxy(each.port) for each in cluster.brokers}
        self.for_brokers: dict[int, Proxy] = {}
        self._inside: list[socket.socket] = []
        for broker in cluster.brokers:
            self._between(broker)

    def _between(self, broker: BrokerProcess) -> None:
        inside = socket.socket()  # held, as the cluster holds the ports of its brokers
        inside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        inside.bind((HOST, 0))
        self._inside.append(inside)
        port = inside.getsockname()[1]
        proxy = self.for_brokers[broker.node_id] = Proxy(port)
        broker.properties |= {
            "listeners": f"PLAINTEXT://{broker.address},BROKERS://{HOST}:{port}",
            "advertised.listeners": (
                f"PLAINTEXT://{self.for_clients[broker.node_id].address},BROKERS://{proxy.address}"
            ),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
        }

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(proxy.address for proxy in self.for_clients.values())

    def cut(self, broker: BrokerProcess, *, from_clients: bool = True) -> None:
        """Drop all bytes from and to a broker, without closing connections."""
        for other in self._brokers:
            if other is not broker:  # what it asks itself passes no cable
                self.cut_link(broker, other)
                self.cut_link(other, broker)
        if from_clients:
            self.for_clients[broker.node_id].cut()

    def cut_link(self, caller: BrokerProcess, called: BrokerProcess) -> None:
        """Drop requests of `caller` to `called` and their responses, but not the requests of `called`."""
        self.for_brokers[called.node_id].cut(f"broker-{caller.node_id}")

    def delay(self, seconds: float) -> None:
        for proxy in self._proxies:
            proxy.delay(seconds)

    def reset(self) -> None:
        for proxy in self._proxies:
            proxy.reset()

    def heal(self) -> None:
        for proxy in self._proxies:
            proxy.heal()

    def close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        for inside in self._inside:
            inside.close()

    @property
    def _proxies(self) -> list[Proxy]:
        return [*self.for_clients.values(), *self.for_brokers.values()]
