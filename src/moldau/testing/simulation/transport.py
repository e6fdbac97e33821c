"""The two ends of a simulated connection, and the pipes between them."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from zlib import crc32

from moldau.testing.simulation.loop import MS, SimulatedLoop

if TYPE_CHECKING:
    from moldau.testing.simulation.host import Host
    from moldau.testing.simulation.network import Network

WINDOW_BYTES = 256 * 1024
"""What a sender may have under way; the rest waits in its transport."""
RETRANSMIT_US = (MS, 200 * MS)
"""How long after a cut link is whole again TCP tries again."""
SPLIT_SHARE = 0.1
"""Of the writes that arrive in two pieces."""
WRITE_HIGH_WATER_BYTES = 64 * 1024

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview

END, RESET = "end", "reset"


class SocketInfo:
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


class Pipe:
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
    outgoing: Pipe

    def __init__(self, network: Network, loop: SimulatedLoop, local: Address, remote: Address) -> None:
        super().__init__({"peername": remote, "sockname": local, "socket": SocketInfo(local, remote)})
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
        elif item is END:
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
            if word is RESET:
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
            self.outgoing.send(END)
            self._lose(None)

    def abort(self) -> None:
        if not self._is_lost:
            self.outgoing.send(RESET)
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_closing = self._is_lost = True
        self._unsent.clear()
        self._network.forget(self)
        if self._protocol is not None:
            self.loop.call_soon(self._protocol.connection_lost, error)
