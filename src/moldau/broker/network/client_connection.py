"""One client connection: reads bytes, splits them into frames, and sends responses in the order of the requests.

The rules, all of them here:

- A frame is handled as soon as it is complete, in place, in the receive buffer: no copy, no task, no queue.
- Responses are sent in request order. A Produce that waits for its fsync lets later requests start (their responses
  queue up after its own); any other response that is not ready blocks later requests, as in Kafka.
- While a client does not read its responses, its requests are not handled: `pause_writing` stops the handling of
  frames, a full receive buffer stops the socket. Memory per connection is one request, one response and the
  transport's high-water mark.
- A frame longer than `socket.request.max.bytes`, a malformed message, or a failed Produce with acks=0 closes this
  connection.

No API is known here: `Dispatch` gets a frame and returns its response.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Generator, Sequence
from typing import Any, Protocol, TypeAlias, cast

from moldau.broker.network.byte_budget import ByteBudget
from moldau.errors import ProtocolError, UnservedRequestError

Buffers: TypeAlias = "bytes | list[bytes | memoryview]"
"""A whole response frame, in one piece or several."""


class Pipelined:
    """An answer that is not ready, behind which the next requests may already start."""

    __slots__ = ("connection", "future")

    def __init__(self, future: asyncio.Future[Buffers]) -> None:
        self.future = future
        self.connection: ClientConnection | None = None

    def __await__(self) -> Generator[Any, None, Buffers]:
        """For those who have to wait in line: nothing behind it starts."""
        return self.future.__await__()

    def settle(self, answer: Buffers) -> None:
        """The answer is there, and leaves now: a done callback of the future would take another turn of the loop."""
        future, connection = self.future, self.connection
        if future.done():
            return
        if connection is None:
            future.set_result(answer)
            return
        future.remove_done_callback(connection.pipelined_done)
        future.set_result(answer)
        connection.pipelined_done(future)


Answer: TypeAlias = "Buffers | Pipelined | Awaitable[Buffers | Pipelined | None] | None"
"""None: the request wants no answer (acks=0)."""

logger = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")

FIRST_BUFFER_BYTES = 16 * 1024
"""What every connection costs, idle or not: 500 idle ones are 8 MB."""
READ_BUFFER_BYTES = 256 * 1024
"""A busy connection's buffer: one read from the socket fills it, so a large frame takes few wake-ups."""
WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Answers queued in the transport before the connection stops handling requests."""
PIPELINE_MAX = 256
"""Requests of one connection that may wait for an fsync at once."""
MIN_RECEIVE_RATE_BYTES = 16 * 1024
"""A frame must arrive at this many bytes a second, after `FRAME_GRACE_S`: slower is a slowloris, not a client."""
FRAME_GRACE_S = 30.0
FRAME_GRACE_CONTENDED_S = 5.0
"""The same when others wait for the memory that the request has reserved."""
CLOSE_GRACE_S = 5.0
"""A closed connection whose client does not read its last answers is cut off after this time."""


class Dispatch(Protocol):
    """What a connection needs to know of the broker."""

    def handle(self, connection: ClientConnection, frame: memoryview) -> Answer: ...

    def connected(self, connection: ClientConnection) -> bool: ...

    def disconnected(self, connection: ClientConnection) -> None: ...


class ClientConnection(asyncio.BufferedProtocol):
    def __init__(
        self,
        dispatch: Dispatch,
        listener: str,
        *,
        loop: asyncio.AbstractEventLoop,
        request_max_bytes: int,
        budget: ByteBudget,
        send_budget: ByteBudget,
        socket_options: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.listener = listener
        self.peer = "?"
        self.peer_host = "?"
        self.software = ""
        self.requests = 0
        self.closing = False
        self.closing_since_s = 0.0
        self.write_paused_since_s = 0.0
        self.gone = asyncio.Event()
        self.last_active_s = loop.time()
        self.frame_since_s = 0.0
        self._dispatch = dispatch
        self._loop = loop
        self._budget = budget
        self._send_budget = send_budget
        self._socket_options = socket_options
        self._unsent_bytes = 0
        self._request_max_bytes = request_max_bytes
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(FIRST_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._granted = 0
        self._reading = True
        self._held: asyncio.Task[None] | None = None
        self._is_handling = False
        self._answers: deque[Buffers | asyncio.Future[Buffers]] = deque()
        self._unwritten_bytes = 0
        self._idle: asyncio.Event | None = None
        """There from the moment the broker wants to stop; set when the last answer has left."""

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods, but not the type.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        name = transport.get_extra_info("peername")
        if isinstance(name, tuple):
            self.peer_host = str(name[0])
            self.peer = f"{name[0]}:{name[1]}"
        for option, value in self._socket_options:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, option, value)
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if not self._dispatch.connected(self):
            self.close("too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        if self._held is not None:
            # Not at once: a request that came right before the client hung up has yet to begin.
            self._loop.call_soon(self._held.cancel)
        self._answers.clear()
        self._buffer = bytearray(0)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._give_back()
        self._sent()
        self._dispatch.disconnected(self)
        self._became_idle()
        self.gone.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self.last_active_s = self._loop.time()
        self._handle_frames()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.write_paused_since_s = self._loop.time()
        if self._transport is not None:
            self._unsent_bytes = self._transport.get_write_buffer_size()
            self._send_budget.charge(self._unsent_bytes)

    def resume_writing(self) -> None:
        self.write_paused_since_s = 0.0
        self._sent()
        self._handle_frames()

    def _sent(self) -> None:
        count, self._unsent_bytes = self._unsent_bytes, 0
        self._send_budget.give_back(count)

    # -- what the broker asks of a connection

    def close(self, why: str, level: int = logging.INFO) -> None:
        if self.closing:
            return
        self.closing = True
        self.closing_since_s = self._loop.time()
        logger.log(level, "closing connection", extra={"peer": self.peer, "software": self.software, "why": why})
        if self._transport is not None:
            self._transport.close()

    @property
    def is_busy(self) -> bool:
        """True while a request is being answered."""
        return self._held is not None or bool(self._answers)

    async def drained(self) -> None:
        """Handles no further request, lets the answers under way leave, closes: how a broker says good-bye."""
        self._idle = asyncio.Event()
        self._became_idle()
        await self._idle.wait()
        self.close("broker is stopping", logging.DEBUG)

    def keep_frame(self) -> None:
        """Called while a frame is handled: its bytes are needed after that. What comes next goes to another buffer."""
        size = READ_BUFFER_BYTES if len(self._buffer) > FIRST_BUFFER_BYTES else FIRST_BUFFER_BYTES
        self._replace_buffer(max(size, self._end - self._start))

    def abort(self) -> None:
        """Closes at once; what was not sent is dropped."""
        self.closing = True
        if self._transport is not None:
            self._transport.abort()

    def overdue(self, now_s: float, idle_max_s: float) -> str | None:
        """Why this connection has to go, or None."""
        if self._end > self._start and self.frame_since_s and not self.is_busy and not self.write_paused_since_s:
            grace_s = FRAME_GRACE_CONTENDED_S if self._budget.contended and self._granted else FRAME_GRACE_S
            allowed_s = grace_s + (self._end - self._start) / MIN_RECEIVE_RATE_BYTES
            if self._reading and now_s - self.frame_since_s > allowed_s:
                return "request arrived too slowly"
        if not self.requests and now_s - self.last_active_s > FRAME_GRACE_S:
            return "no request after connecting"
        if not self.is_busy and now_s - self.last_active_s > idle_max_s:
            return "idle"
        return None

    @property
    def buffer_bytes(self) -> int:
        return len(self._buffer)

    def shrink(self) -> None:
        """Gives a large receive buffer back when nothing is in it."""
        if self._start == self._end and len(self._buffer) > FIRST_BUFFER_BYTES and not self.is_busy:
            self._replace_buffer(FIRST_BUFFER_BYTES)
            self._give_back()

    # -- frames

    def _handle_frames(self) -> None:
        """Handles every whole frame in the buffer, then makes room for more or stops reading."""
        transport = self._transport
        if transport is None or self.closing or self._idle is not None:
            return
        missing = 0
        ready: list[bytes | memoryview] = []
        self._is_handling = True
        try:
            while self._held is None and not self.write_paused_since_s and not self._is_full:
                start = self._start
                available = self._end - start
                if available < 4:
                    break
                (size,) = _SIZE.unpack_from(self._buffer, start)
                if not 0 < size <= self._request_max_bytes:
                    raise ProtocolError(f"request of {size} bytes; allowed are 1 to {self._request_max_bytes}")
                if available < size + 4:
                    missing = size + 4
                    break
                self._start = start + 4 + size
                self.requests += 1
                answer = self._dispatch.handle(self, self._view[start + 4 : start + 4 + size])
                self._take_answer(answer, ready)
                if self._unwritten_bytes >= WRITE_HIGH_WATER_BYTES:
                    # Small requests may ask for gigabytes: the client has to listen before more of them are handled.
                    self._write(ready)
                    ready = []
        except ProtocolError as error:
            self._write(ready)
            self.close(str(error), _level_of(error))
            return
        finally:
            self._is_handling = False
        self._write(ready)
        if self._answers:
            self._write_answers()
        if not self.closing:
            self._make_room(missing)

    @property
    def _is_full(self) -> bool:
        """Whether enough answers wait behind one that is not ready."""
        return len(self._answers) >= PIPELINE_MAX or self._unwritten_bytes >= WRITE_HIGH_WATER_BYTES

    def _take_answer(self, answer: Answer, ready: list[bytes | memoryview]) -> None:
        if answer is None:
            return
        if isinstance(answer, (bytes, list)):
            self._unwritten_bytes += _size(answer)
            if self._answers:
                self._answers.append(answer)
            elif isinstance(answer, bytes):
                ready.append(answer)
            else:
                ready.extend(answer)
        elif isinstance(answer, Pipelined):
            self._pipeline(answer)
        else:
            self._held = self._loop.create_task(self._hold(answer))

    def _pipeline(self, answer: Pipelined) -> None:
        self._answers.append(answer.future)
        answer.connection = self
        answer.future.add_done_callback(self.pipelined_done)

    async def _hold(self, answer: Awaitable[Buffers | Pipelined | None]) -> None:
        try:
            buffers = await answer
        except ProtocolError as error:
            self.close(str(error), _level_of(error))
            return
        except asyncio.CancelledError:
            # The client disconnected, or the loop is closing: the response is not needed.
            return
        except Exception as error:
            logger.exception("internal error while handling a request (please report it)", extra={"peer": self.peer})
            self.close(f"internal error: {error!r}")
            return
        finally:
            self._held = None
        if self.closing:
            return
        if isinstance(buffers, Pipelined):
            self._pipeline(buffers)
        elif buffers is not None:
            self._unwritten_bytes += _size(buffers)
            self._answers.append(buffers)
            self._write_answers()
        self._became_idle()
        self._handle_frames()

    def pipelined_done(self, future: asyncio.Future[Buffers]) -> None:
        if self.closing or future.cancelled():
            return
        if (error := future.exception()) is not None:
            self.close(str(error), _level_of(error))
            return
        full = self._is_full
        self._unwritten_bytes += _size(future.result())
        if self._is_handling:
            return  # answers that came before it are about to be written
        self._write_answers()
        self._became_idle()
        if full:
            # Not here: the caller is in the middle of something, perhaps an append.
            self._loop.call_soon(self._handle_frames)

    def _write_answers(self) -> None:
        ready: list[bytes | memoryview] = []
        answers = self._answers
        while answers:
            head = answers[0]
            if isinstance(head, asyncio.Future):
                if not head.done():
                    break
                head = head.result()
            answers.popleft()
            if isinstance(head, bytes):
                ready.append(head)
            else:
                ready.extend(head)
        self._write(ready)

    def _write(self, ready: list[bytes | memoryview]) -> None:
        if not ready:
            return
        self._unwritten_bytes -= sum(map(len, ready))
        if self._transport is None or self._transport.is_closing():
            return
        if len(ready) == 1:
            self._transport.write(ready[0])
        else:
            self._transport.writelines(ready)

    def _became_idle(self) -> None:
        if self._idle is not None and (self.closing or not self.is_busy):
            self._idle.set()

    # -- the receive buffer

    def _make_room(self, missing: int) -> None:
        """After the frames: `missing` is the whole length of the frame that has only begun, or 0."""
        start, end = self._start, self._end
        if start == end:
            self._start = self._end = 0
            self.frame_since_s = 0.0
            if self._granted and self._budget.contended:
                self.shrink()
        else:
            if not self.frame_since_s or start:
                self.frame_since_s = self.last_active_s
            if start and (missing > len(self._buffer) - start or end == len(self._buffer)):
                # Nobody keeps a view of a handled frame, so the unread bytes may move over it.
                self._view[: end - start] = self._view[start:end]
                self._start, self._end = 0, end - start
        wanted = missing if missing > len(self._buffer) else 0
        if wanted and not self._grow(wanted):
            self._stop_reading()
            self._budget.wait(self._budget_returned)
            return
        if self._end == len(self._buffer):
            # Full of requests that cannot be handled yet: the socket waits until they are.
            self._stop_reading()
        elif not self._reading and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()

    def _grow(self, wanted: int) -> bool:
        """Reserves the whole frame, then doubles towards it: a length with no bytes behind it takes no memory."""
        wanted = max(wanted, READ_BUFFER_BYTES)
        extra = wanted - FIRST_BUFFER_BYTES - self._granted
        if extra > 0:
            if not self._budget.take(extra):
                return False
            self._granted += extra
        if self._end == len(self._buffer):
            self._replace_buffer(min(wanted, max(2 * len(self._buffer), READ_BUFFER_BYTES)))
        return True

    def _replace_buffer(self, size: int) -> None:
        """A new buffer with the unread bytes at its start."""
        fresh = bytearray(size)
        count = self._end - self._start
        fresh[:count] = self._view[self._start : self._end]
        self._buffer = fresh
        self._view = memoryview(fresh)
        self._start, self._end = 0, count

    def _give_back(self) -> None:
        granted, self._granted = self._granted, 0
        self._budget.give_back(granted)

    def _budget_returned(self) -> None:
        self._loop.call_soon(self._handle_frames)

    def _stop_reading(self) -> None:
        if self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()


def _size(answer: Buffers) -> int:
    return len(answer) if isinstance(answer, bytes) else sum(map(len, answer))


def _level_of(error: BaseException) -> int:
    """A client that is too old comes again and again: what is wrong with it was logged where that was found."""
    return logging.DEBUG if isinstance(error, UnservedRequestError) else logging.INFO
