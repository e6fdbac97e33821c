"""Requests to other brokers: one connection to each, with any number of requests on it at a time.

`Peer` is a socket to one address, opened when first needed and again after it broke; it moves frames. `Peers` knows
the addresses from the metadata, and speaks messages. Whatever goes wrong on the way is a KafkaError with a code that
clients retry; the caller decides what it means.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, cast

from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.errors import ErrorCode, KafkaError, ProtocolError
from moldau.metadata.image import MetadataImage
from moldau.version import __version__
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import Schema, decode_response, encode_request, request_head, request_schema
from moldau.wire.primitives import Buffer

Build = Callable[[Schema], Any]
"""Makes a request out of the classes of the version that was agreed on."""
Address = tuple[str, int]

BUFFER_BYTES = 64 * 1024
RESPONSE_MAX_BYTES = 256 * 1024 * 1024
"""More than any broker sends; a longer frame is not a response."""
CONTROLLER = "controller"
"""The purpose of connections on which a broker asks the controller for itself: heartbeats, above all."""
FORWARDING = "forwarding"
"""For requests of clients, and whatever takes as long: heartbeats must not wait for them."""
CONNECT_TIMEOUT_S = 3.0
REQUEST_TIMEOUT_S = 30.0
CORRELATION_ID_MAX = 2**31 - 1
"""Then they begin again: a busy follower comes so far within weeks."""

_SIZE = struct.Struct(">i")
_NO_WAY = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENETUNREACH})
"""This machine cannot connect to addresses of that kind, so no broker can be there for it."""


class Peer:
    """A connection to one address. `lost` is set while there is none, and called for what waits when it breaks."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, client_id: str) -> None:
        self.address = address
        self.versions: dict[int, int] = {}
        """The newest version that both sides support, by API key."""
        self._loop = loop
        self._client_id = client_id
        self._wire: _Wire | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._correlation_id = 0

    async def ask(self, key: int, build: Build, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        """One message for another, in the newest version both know."""
        await self._connected()
        version = self.versions.get(key)
        if version is None:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"{self._where} does not serve API {key}")
        entity, wire = build(request_schema(key, version)), self._wire
        self._count()
        frame = await self._exchange(encode_request(self._correlation_id, self._client_id, entity), timeout_s)
        return self._decoded(wire, key, version, frame)

    async def ask_raw(
        self, key: int, version: int, body: Sequence[Buffer], *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> memoryview:
        """As `ask`, with a body the caller packed; the answer's frame from its correlation id on."""
        await self._connected()
        self._count()
        size = sum(len(part) for part in body)
        head = request_head(key, version, self._correlation_id, self._client_id, size)
        return await self._exchange(b"".join((head, *body)), timeout_s)

    def hang_up(self) -> None:
        """Fails all requests that wait for a response."""
        if self._wire is not None:
            self._wire.close()

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    @property
    def _where(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def _count(self) -> None:
        self._correlation_id = (self._correlation_id + 1) & CORRELATION_ID_MAX

    async def _exchange(self, frame: bytes, timeout_s: float) -> memoryview:
        assert self._wire is not None, "connected before"
        wire = self._wire
        answer = wire.send(self._correlation_id, frame)
        # `asyncio.timeout` would take longer than all the rest of this.
        timer = self._loop.call_later(timeout_s, self._give_up, wire, answer, timeout_s)
        try:
            return await answer
        finally:
            timer.cancel()

    def _give_up(self, wire: _Wire, answer: asyncio.Future[memoryview], timeout_s: float) -> None:
        if not answer.done():
            late = f"no answer from {self._where} within {timeout_s:g} s"
            answer.set_exception(KafkaError(ErrorCode.REQUEST_TIMED_OUT, late))
        # Its answer may come yet, and those behind it wait for it: only a new connection is clean.
        wire.close()

    def _decoded(self, wire: _Wire | None, key: int, version: int, frame: memoryview) -> Any:
        try:
            return decode_response(key, version, frame)[1]
        except ProtocolError as error:
            if wire is not None:
                wire.close()
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self._where} sent an invalid response: {error}") from error

    async def _connected(self) -> None:
        while self._wire is None or self._wire.is_lost:
            if self._connecting is None:
                self._connecting = self._loop.create_task(self._connect())
                self._connecting.add_done_callback(self._connect_ended)
            # Several may wait for it; one that gives up must not take it from the others.
            await asyncio.shield(self._connecting)

    def _connect_ended(self, task: asyncio.Task[None]) -> None:
        self._connecting = None
        if not task.cancelled():
            task.exception()  # the callers that wait get it; the loop need not log it

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, wire = await self._loop.create_connection(_Wire, *self.address)
        except TimeoutError:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{self._where} does not respond") from None
        except OSError as error:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE
                if isinstance(error, ConnectionRefusedError)
                else ErrorCode.NETWORK_EXCEPTION,
                f"cannot connect to {self._where}: {error.strerror or error}",
            ) from error
        version = APIS[ApiKey.API_VERSIONS].max_version
        entity = request_schema(ApiKey.API_VERSIONS, version).ApiVersionsRequest(
            client_software_name="moldau-broker", client_software_version=__version__
        )
        self._count()
        number = self._correlation_id
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                frame = await wire.send(number, encode_request(number, self._client_id, entity))
        except TimeoutError:
            wire.close()
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION, f"{self._where} accepted the connection but does not respond"
            ) from None
        answer = self._decoded(wire, ApiKey.API_VERSIONS, version, frame)
        self.versions = {
            api.api_key: min(api.max_version, APIS[api.api_key].max_version)
            for api in answer.api_keys
            if api.api_key in APIS and api.min_version <= APIS[api.api_key].max_version
        }
        self._wire = wire


class _Wire(asyncio.BufferedProtocol):
    """Frames in and out of one socket. A frame larger than the buffer is received in its place, without a copy."""

    def __init__(self) -> None:
        self.is_lost = False
        self._waiting: dict[int, asyncio.Future[memoryview]] = {}
        self._transport: asyncio.Transport | None = None
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._filled = 0
        self._large: memoryview | None = None
        self._large_filled = 0

    def send(self, number: int, frame: bytes) -> asyncio.Future[memoryview]:
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        if self._transport is None or self.is_lost:
            answer.set_exception(KafkaError(ErrorCode.NETWORK_EXCEPTION, "the connection is lost"))
            return answer
        self._waiting[number] = answer
        self._transport.write(frame)
        return answer

    def close(self) -> None:
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        why = KafkaError(ErrorCode.NETWORK_EXCEPTION, f"connection to a broker lost: {exc or 'closed by it'}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(why)
        self._waiting.clear()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._large is not None:
            return self._large[self._large_filled :]
        return self._buffer[self._filled :]

    def buffer_updated(self, count: int) -> None:
        if self._large is not None:
            self._large_filled += count
            if self._large_filled == len(self._large):
                frame, self._large = self._large, None
                self._arrived(frame)
            return
        self._filled += count
        self._split()

    def _split(self) -> None:
        start = 0
        while self._filled - start >= 4:
            (size,) = _SIZE.unpack_from(self._buffer, start)
            if not 4 <= size <= RESPONSE_MAX_BYTES:
                self.close()
                return
            end = start + 4 + size
            if end <= self._filled:
                self._arrived(memoryview(bytes(self._buffer[start + 4 : end])))
                start = end
                continue
            if size > BUFFER_BYTES // 2:
                here = self._filled - start - 4
                self._large = memoryview(bytearray(size))
                self._large[:here] = self._buffer[start + 4 : self._filled]
                self._large_filled = here
                start = self._filled
            break
        left = self._filled - start
        if start and left:
            self._buffer[:left] = bytes(self._buffer[start : self._filled])
        self._filled = left

    def _arrived(self, frame: memoryview) -> None:
        answer = self._waiting.pop(_SIZE.unpack_from(frame)[0], None)
        if answer is not None and not answer.done():
            answer.set_result(frame)


async def refuses(loop: asyncio.AbstractEventLoop, address: Address) -> bool:
    """Whether a machine that is up refuses the connection: the only proof that a process is dead."""
    refused = False
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            # A name can stand for several addresses: `localhost` often does.
            for found in await loop.getaddrinfo(*address, type=socket.SOCK_STREAM):
                try:
                    transport, _ = await loop.create_connection(asyncio.Protocol, *found[4][:2])
                except ConnectionRefusedError:
                    refused = True
                except OSError as error:
                    if error.errno not in _NO_WAY:
                        return False
                else:
                    transport.close()
                    return False
    except (OSError, TimeoutError):
        return False
    return refused


class Peers:
    """The other brokers, as the newest metadata has them."""

    def __init__(self, node_id: int, metadata: MetadataCache, loop: asyncio.AbstractEventLoop) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._loop = loop
        self._peers: dict[tuple[Address, str], Peer] = {}

    async def ask(self, broker_id: int, key: int, build: Build, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Any:
        return await self.broker(broker_id).ask(key, build, timeout_s=timeout_s)

    def broker(self, broker_id: int, purpose: str = "") -> Peer:
        """The connection to a broker; one for each `purpose`, so that a waiting fetch holds up nothing else."""
        return self.at(self._metadata.address_of(broker_id), purpose)

    def at(self, address: Address, purpose: str = "") -> Peer:
        peer = self._peers.get((address, purpose))
        if peer is None:
            client_id = f"broker-{self._node_id}{'-' if purpose else ''}{purpose}"
            peer = self._peers[address, purpose] = Peer(self._loop, address, client_id)
        return peer

    def follow(self, before: MetadataImage, after: MetadataImage) -> None:
        """Fails all requests to a broker that was fenced: other brokers have taken over its work."""
        for broker_id, broker in before.brokers.items():
            now = after.brokers.get(broker_id)
            if not broker.fenced and (now is None or now.fenced) and broker_id != self._node_id:
                address = self._metadata.address_in(before, broker_id)
                for (at, _), peer in self._peers.items():
                    if at == address:
                        peer.hang_up()

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()
        self._peers.clear()
