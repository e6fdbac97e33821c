"""Sockets between hosts, as asyncio's transports show them.

A connection is two pipes. What is written arrives in order, after the latency of the link, in pieces of any size.

    the process dies        its kernel closes its sockets: the others see an end or a reset; its port refuses
    the machine vanishes    nobody hears anything; when it is up again, it resets what it does not know
    a link is cut           what is on its way waits, and arrives some time after the link is whole again (TCP repeats
                            it); in one direction or in both
    a process is paused     its kernel still accepts connections and bytes, up to the window
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from moldau.testing.simulation.loop import MS, SECOND, SimulatedLoop, World

if TYPE_CHECKING:
    from moldau.testing.simulation.host import Host

LATENCY_US = (40, 400)
WINDOW_BYTES = 256 * 1024
"""What a sender may have under way; the rest waits in its transport."""
RETRANSMIT_US = (MS, 200 * MS)
"""How long after a cut link is whole again TCP tries again."""
CONNECT_RETRY_US = SECOND
CONNECT_RETRIES = 6
"""Each twice as long as the one before: after 127 s the kernel gives up."""
SPLIT_SHARE = 0.1
"""Of the writes that arrive in two pieces."""
FIRST_EPHEMERAL_PORT = 32_768
WRITE_HIGH_WATER_BYTES = 64 * 1024

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview
ProtocolFactory = Callable[[], asyncio.BaseProtocol]

_END, _RESET = "end", "reset"


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}
        self.listeners: dict[Address, Listener] = {}
        self._transports: dict[SimulatedLoop, dict[SimulatedTransport, None]] = {}
        self._cuts: dict[tuple[Host, Host], int] = {}
        self._slow_us: dict[Host, int] = {}
        self._waiting: dict[_Pipe, None] = {}
        """Pipes with something in them that a cut link holds back."""
        self._unknown: dict[Host, list[SimulatedTransport]] = {}
        """Other ends of connections that a machine had before it vanished."""
        self._next_port = FIRST_EPHEMERAL_PORT
        self.on_write: Callable[[SimulatedTransport, Buffer], bool] | None = None
        """Sees what each process writes; what it answers False to does not go out."""

    def add(self, host: Host) -> int:
        assert host.name not in self.hosts, f"two hosts of the name {host.name}"
        self.hosts[host.name] = host
        return len(self.hosts)

    # -- what goes wrong

    def cut(self, source: Host, target: Host) -> None:
        """Nothing from `source` reaches `target`; call it twice for both directions."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: Host, target: Host) -> None:
        """Takes one `cut` back."""
        left = self._cuts.pop((source, target), 0) - 1
        if left > 0:
            self._cuts[source, target] = left
        self._go_on()

    def slow_down(self, host: Host, latency_us: int) -> None:
        """Whatever goes to or from that host takes up to so much longer."""
        self._slow_us[host] = latency_us

    def heal(self) -> None:
        self._cuts.clear()
        self._slow_us.clear()
        self._go_on()

    def is_cut(self, source: Host, target: Host) -> bool:
        return (source, target) in self._cuts or not (source.is_up and target.is_up)

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for pipe in waiting:
            pipe.repeat()

    def hold(self, pipe: _Pipe) -> None:
        self._waiting[pipe] = None

    def latency_us(self, source: Host, target: Host) -> int:
        latency_us = self.world.between_us(*LATENCY_US) if source is not target else 10
        slow_us = self._slow_us
        if slow_us:
            for host in (source, target):
                if host in slow_us:
                    latency_us += self.world.between_us(0, slow_us[host])
        return latency_us

    # -- the lives of hosts

    def process_died(self, loop: SimulatedLoop) -> None:
        """Its kernel closes its sockets. What it had written may still arrive, or be lost by a reset."""
        for address in [address for address, listener in self.listeners.items() if listener.loop is loop]:
            del self.listeners[address]
        for transport in self._transports.pop(loop, {}):
            transport.vanish(_END if self.world.chance(0.5) else _RESET)

    def machine_died(self, host: Host) -> None:
        for address in [address for address in self.listeners if address[0] == host.name]:
            del self.listeners[address]
        for loop in [loop for loop in self._transports if loop.host is host]:
            for transport in self._transports.pop(loop):
                transport.vanish(None)
                self._unknown.setdefault(host, []).append(transport)
        for pipe in [pipe for pipe in self._waiting if pipe.source is host]:
            del self._waiting[pipe]

    def booted(self, host: Host) -> None:
        """It answers what others repeat to it, or ask whether it is there, with a reset."""
        for transport in self._unknown.pop(host, ()):
            self.world.after(self.world.between_us(0, SECOND), transport.outgoing.send, _RESET)
        self._go_on()

    # -- connections

    def listen(self, loop: SimulatedLoop, factory: ProtocolFactory, port: int) -> Listener:
        address = (loop.host.name, port or self._port())
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, f"{address[0]}:{address[1]} is in use")
        listener = self.listeners[address] = Listener(self, loop, factory, address)
        return listener

    async def connect(
        self, loop: SimulatedLoop, factory: ProtocolFactory, name: str, port: int
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        target = self.hosts.get(name)
        if target is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no host of the name {name}")
        connected: asyncio.Future[SimulatedTransport] = loop.create_future()
        here = SimulatedTransport(self, loop, (loop.host.name, self._port()), (name, port))
        there_pipe = here.outgoing = _Pipe(self, loop.host, target)
        self._knock(here, there_pipe, connected, 0)
        try:
            await connected
        except BaseException:
            here.abort()
            raise
        protocol = factory()
        here.attach(protocol)
        return here, protocol

    def _knock(
        self, here: SimulatedTransport, pipe: _Pipe, connected: asyncio.Future[SimulatedTransport], attempt: int
    ) -> None:
        """The first packet of a connection; nobody answers it on a link that is cut."""
        if connected.done() or here.loop.is_dead:
            return
        if attempt > CONNECT_RETRIES:
            self._settle(here, connected, OSError(errno.ETIMEDOUT, f"no answer from {here.remote[0]}"))
            return
        self.world.after(self.latency_us(pipe.source, pipe.target), self._knocked, here, pipe, connected)
        self.world.after(CONNECT_RETRY_US << attempt, self._knock, here, pipe, connected, attempt + 1)

    def _knocked(self, here: SimulatedTransport, pipe: _Pipe, connected: asyncio.Future[SimulatedTransport]) -> None:
        source, target = pipe.source, pipe.target
        if connected.done() or self.is_cut(source, target) or self.is_cut(target, source):
            return
        listener = self.listeners.get(here.remote)
        back_us = self.latency_us(target, source)
        if listener is None:
            refused = ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens on {here.remote}")
            self.world.after(back_us, self._settle, here, connected, refused)
            return
        if pipe.receiver is None:
            there = SimulatedTransport(self, listener.loop, here.remote, here.local)
            there.outgoing = _Pipe(self, target, source)
            there.outgoing.receiver, pipe.receiver = here, there
            self._register(here)
            self._register(there)
            listener.loop.call_soon(listener.accept, there)
        self.world.after(back_us, self._settle, here, connected, None)

    def _settle(
        self, here: SimulatedTransport, connected: asyncio.Future[SimulatedTransport], error: OSError | None
    ) -> None:
        def settle() -> None:
            if connected.done():
                return
            if error is None:
                connected.set_result(here)
            else:
                connected.set_exception(error)

        here.loop.call_soon(settle)

    def _register(self, transport: SimulatedTransport) -> None:
        self._transports.setdefault(transport.loop, {})[transport] = None

    def forget(self, transport: SimulatedTransport) -> None:
        self._transports.get(transport.loop, {}).pop(transport, None)

    def _port(self) -> int:
        self._next_port += 1
        return self._next_port


class Listener:
    """What `create_server` returns."""

    def __init__(self, network: Network, loop: SimulatedLoop, factory: ProtocolFactory, address: Address) -> None:
        self._network = network
        self._factory = factory
        self.loop = loop
        self.address = address
        self.sockets = (_Socket(address, address),)

    def accept(self, transport: SimulatedTransport) -> None:
        if not transport.is_closing():
            transport.attach(self._factory())

    def close(self) -> None:
        if self._network.listeners.get(self.address) is self:
            del self._network.listeners[self.address]

    def is_serving(self) -> bool:
        return self._network.listeners.get(self.address) is self

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self.loop

    async def start_serving(self) -> None:
        pass

    async def wait_closed(self) -> None:
        pass


class _Socket:
    """As much of a socket as programs ask a transport for."""

    family, type, proto = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP

    def __init__(self, local: Address, remote: Address) -> None:
        self._local, self._remote = local, remote

    def getsockname(self) -> Address:
        return self._local

    def getpeername(self) -> Address:
        return self._remote

    def setsockopt(self, *_: Any) -> None:
        pass

    def fileno(self) -> int:
        return -1


class _Pipe:
    """What goes from one end of a connection to the other."""

    def __init__(self, network: Network, source: Host, target: Host) -> None:
        self.source = source
        self.target = target
        self.receiver: SimulatedTransport | None = None
        self._network = network
        self._world = network.world
        self._items: deque[tuple[int, bytes | str]] = deque()
        self._last_us = 0
        self._is_moving = False

    def send(self, item: bytes | str) -> None:
        world = self._world
        at_us = max(self._last_us, world.now_us + self._network.latency_us(self.source, self.target))
        if len(item) > 1 and isinstance(item, bytes) and world.random.random() < SPLIT_SHARE:
            place = 1 + int(world.random.random() * (len(item) - 1))
            self._items.append((at_us, item[:place]))
            item = item[place:]
            at_us += world.between_us(0, MS)
        self._items.append((at_us, item))
        self._last_us = at_us
        self._move()

    def lose(self) -> None:
        """What has not arrived never will."""
        self._items.clear()

    def repeat(self) -> None:
        """The link may be whole again."""
        again_us = self._world.now_us + self._world.between_us(*RETRANSMIT_US)
        self._items = deque((max(at_us, again_us), item) for at_us, item in self._items)
        self._last_us = max(self._last_us, again_us)
        self._move()

    def _move(self) -> None:
        if self._items and not self._is_moving:
            self._is_moving = True
            self._world.at(max(self._items[0][0], self._world.now_us), self._arrive)

    def _arrive(self) -> None:
        self._is_moving = False
        if not self._items or self.receiver is None:
            return
        if self._network.is_cut(self.source, self.target):
            self._network.hold(self)
            return
        now_us = self._world.now_us
        while self._items and self._items[0][0] <= now_us:
            self.receiver.arrived(self._items.popleft()[1])
        self._move()


class SimulatedTransport(asyncio.Transport):
    outgoing: _Pipe

    def __init__(self, network: Network, loop: SimulatedLoop, local: Address, remote: Address) -> None:
        super().__init__({"peername": remote, "sockname": local, "socket": _Socket(local, remote)})
        self.loop = loop
        self.local = local
        self.remote = remote
        self._network = network
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_buffered = False
        self._incoming: deque[bytes] = deque()
        self._has_end = False
        self._is_reading = True
        self._read_is_due = False
        self._unsent = bytearray()
        self._under_way = 0
        """Bytes that the other process has not read yet."""
        self._is_closing = False
        self._is_lost = False
        self._high, self._low = WRITE_HIGH_WATER_BYTES, WRITE_HIGH_WATER_BYTES // 4
        self._writing_is_paused = False

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        self.set_protocol(protocol)
        protocol.connection_made(self)
        self._read_soon()

    # -- for the network

    def arrived(self, item: bytes | str) -> None:
        """In the kernel of this end's machine."""
        if self.loop.is_dead or self._is_lost:
            return
        if isinstance(item, bytes):
            self._network.world.mix(crc32(item))
            self._incoming.append(item)
        elif item is _END:
            self._has_end = True
        else:
            self._incoming.clear()
            self._lose(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            return
        self._read_soon()

    def vanish(self, word: str | None) -> None:
        """The process of this end is gone."""
        self._is_lost = self._is_closing = True
        if word is not None:
            if word is _RESET:
                self.outgoing.lose()
            self.outgoing.send(word)

    # -- reading

    def _read_soon(self) -> None:
        if self._protocol is not None and self._is_reading and not self._read_is_due and not self._is_closing:
            self._read_is_due = True
            self.loop.call_soon(self._read)

    def _read(self) -> None:
        self._read_is_due = False
        while self._incoming and self._is_reading and not self._is_closing:
            data = self._incoming.popleft()
            self._acknowledge(len(data))
            if self._is_buffered:
                self._fill(data)
            else:
                self._protocol.data_received(data)  # type: ignore[union-attr]
        if self._has_end and not self._incoming and self._is_reading and not self._is_closing:
            self._has_end = False
            if not self._protocol.eof_received():  # type: ignore[union-attr]
                self.close()

    def _fill(self, data: bytes) -> None:
        protocol: Any = self._protocol
        while data:
            if not self._is_reading or self._is_closing:
                self._under_way_back(len(data))
                self._incoming.appendleft(data)
                return
            room = protocol.get_buffer(-1)
            count = min(len(room), len(data))
            room[:count] = data[:count]
            protocol.buffer_updated(count)
            data = data[count:]

    def _acknowledge(self, count: int) -> None:
        other = self.outgoing.receiver
        if other is not None:
            other.sent(count)

    def _under_way_back(self, count: int) -> None:
        other = self.outgoing.receiver
        if other is not None:
            other._under_way += count

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        self._is_reading = True
        self._read_soon()

    def is_reading(self) -> bool:
        return self._is_reading and not self._is_closing

    # -- writing

    def write(self, data: Buffer) -> None:
        if self._is_closing or self.loop.is_dead or not data:
            return
        on_write = self._network.on_write
        if on_write is not None and not on_write(self, data):
            return
        self._unsent += data
        self._send()
        if not self._writing_is_paused and len(self._unsent) > self._high:
            self._writing_is_paused = True
            self._protocol.pause_writing()  # type: ignore[union-attr]

    def writelines(self, parts: Iterable[Buffer]) -> None:
        self.write(b"".join(parts))

    def _send(self) -> None:
        count = min(len(self._unsent), WINDOW_BYTES - self._under_way)
        if count > 0:
            data = bytes(self._unsent[:count])
            del self._unsent[:count]
            self._under_way += count
            self.outgoing.send(data)

    def sent(self, count: int) -> None:
        """The other process has read so much."""
        self._under_way -= count
        if self._is_lost or not self._unsent or self.loop.is_dead:
            return
        self._send()
        if self._writing_is_paused and len(self._unsent) <= self._low:
            self._writing_is_paused = False
            self.loop.call_soon(self._resume_writing)
        self._close_if_done()

    def _resume_writing(self) -> None:
        if self._protocol is not None and not self._is_lost and not self._writing_is_paused:
            self._protocol.resume_writing()

    def can_write_eof(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = WRITE_HIGH_WATER_BYTES if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    # -- the end

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """What was written still goes out."""
        if not self._is_closing:
            self._is_closing = True
            self._close_if_done()

    def _close_if_done(self) -> None:
        if self._is_closing and not self._unsent and not self._is_lost:
            self.outgoing.send(_END)
            self._lose(None)

    def abort(self) -> None:
        if not self._is_lost:
            self.outgoing.send(_RESET)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_closing = self._is_lost = True
        self._unsent.clear()
        self._network.forget(self)
        if self._protocol is not None:
            self.loop.call_soon(self._protocol.connection_lost, error)
