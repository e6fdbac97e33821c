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
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.testing.simulation.loop import SECOND, SimulatedLoop, World
from moldau.testing.simulation.transport import END, RESET, Address, Buffer, Pipe, SimulatedTransport, SocketInfo

if TYPE_CHECKING:
    from moldau.testing.simulation.host import Host

LATENCY_US = (40, 400)
CONNECT_RETRY_US = SECOND
CONNECT_RETRIES = 6
"""Each twice as long as the one before: after 127 s the kernel gives up."""
FIRST_EPHEMERAL_PORT = 32_768

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class Network:
    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Host] = {}
        self.listeners: dict[Address, Listener] = {}
        self._transports: dict[SimulatedLoop, dict[SimulatedTransport, None]] = {}
        self._cuts: dict[tuple[Host, Host], int] = {}
        self._slow_us: dict[Host, int] = {}
        self._waiting: dict[Pipe, None] = {}
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

    def hold(self, pipe: Pipe) -> None:
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
            transport.vanish(END if self.world.chance(0.5) else RESET)

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
            self.world.after(self.world.between_us(0, SECOND), transport.outgoing.send, RESET)
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
        there_pipe = here.outgoing = Pipe(self, loop.host, target)
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
        self, here: SimulatedTransport, pipe: Pipe, connected: asyncio.Future[SimulatedTransport], attempt: int
    ) -> None:
        """The first packet of a connection; nobody answers it on a link that is cut."""
        if connected.done() or here.loop.is_dead:
            return
        if attempt > CONNECT_RETRIES:
            self._settle(here, connected, OSError(errno.ETIMEDOUT, f"no answer from {here.remote[0]}"))
            return
        self.world.after(self.latency_us(pipe.source, pipe.target), self._knocked, here, pipe, connected)
        self.world.after(CONNECT_RETRY_US << attempt, self._knock, here, pipe, connected, attempt + 1)

    def _knocked(self, here: SimulatedTransport, pipe: Pipe, connected: asyncio.Future[SimulatedTransport]) -> None:
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
            there.outgoing = Pipe(self, target, source)
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
        self.sockets = (SocketInfo(address, address),)

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
