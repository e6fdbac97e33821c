"""The HTTP server of a webhook source: a request is written to the journal, and answered when it is committed.

It runs in a thread of the process where Spark keeps the stream reader, which also ends it: with the query, or with the
JVM. Requests that come at the same time share one fsync. There is a limit on all that waits.

| answer | when                                                                                                 |
|--------|------------------------------------------------------------------------------------------------------|
| 200    | the row is committed downstream                                                                      |
| 401    | without the right authorization                                                                      |
| 404, 405, 413 | another path, another method than POST and PUT, a body that is too large                      |
| 429    | too many requests wait, or too much is not committed yet                                             |
| 503    | not committed in time, or the query ends: send it again. It may come twice then                      |
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import uvicorn

from moldau.clocks import wall_clock_ms
from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.connectors.readers.request_journal import Journal, Request

# The reader of a query that was just stopped may need a moment to free the port.
_BIND_S = 10.0
_BIND_PAUSE_S = 0.1
_STOP_S = 5.0
# Secrets of senders, and what is about the connection alone.
_HIDDEN_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "connection", "content-length"})

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True)
class Limits:
    timeout_s: float
    body_bytes_max: int
    waiting_max: int
    connections_max: int
    backlog_bytes_max: int


class Refusal(Exception):  # noqa: N818 (an answer, not an error of ours)
    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers or {}


class _Waiting(NamedTuple):
    position: int  # after its request
    is_committed: asyncio.Future[bool]


class WebhookServer:
    def __init__(
        self, address: tuple[str, int], path: str, authorization: str | None, limits: Limits, journal: Journal
    ):
        self._path = path.rstrip("/")
        self._authorization = authorization  # the SHA-256 of the header
        self._limits = limits
        self._journal = journal
        self._received = threading.Condition()
        self._end = journal.end  # of what is on disk
        self._committed = 0
        self._gathered: list[tuple[bytes, asyncio.Future[bool]]] = []  # to be written to the journal
        self._waiting: deque[_Waiting] = deque()
        self._open_requests = 0
        self._socket = _bound(address)
        # uvicorn counts connections; requests are counted here.
        config = uvicorn.Config(
            self, lifespan="off", ws="none", log_config=None, access_log=False, limit_concurrency=limits.connections_max
        )
        self._server = uvicorn.Server(config)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def wait_for_requests(self, position: int, timeout_s: float) -> int:
        """The position after the last request; waits if that is `position`."""
        with self._received:
            self._received.wait_for(lambda: self._end > position, timeout_s)
            return max(self._end, position)

    def committed(self, position: int) -> None:
        """All requests before it are committed: answer them."""
        if position > self._committed:
            self._committed = position
            self._loop.call_soon_threadsafe(self._release, position, True)

    def stop(self) -> None:
        self._server.should_exit = True
        self._loop.call_soon_threadsafe(self._release, 2**63, False)
        self._thread.join(_STOP_S)
        self._socket.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._has_gathered = asyncio.Event()
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        writing = asyncio.create_task(self._write_journal())
        await self._server.serve(sockets=[self._socket])
        writing.cancel()

    def _release(self, position: int, is_committed: bool) -> None:
        while self._waiting and self._waiting[0].position <= position:
            future = self._waiting.popleft().is_committed
            if not future.done():
                future.set_result(is_committed)

    async def _write_journal(self) -> None:
        while True:
            await self._has_gathered.wait()
            self._has_gathered.clear()
            gathered, self._gathered = self._gathered, []
            position = self._journal.end
            try:
                await asyncio.to_thread(self._journal.append, [frame for frame, _ in gathered])
            except OSError:
                for _, future in gathered:
                    if not future.done():
                        future.set_result(False)
                continue
            for frame, future in gathered:
                position += len(frame)
                self._waiting.append(_Waiting(position, future))
            with self._received:
                self._end = self._journal.end
                self._received.notify_all()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        self._open_requests += 1
        try:
            status, text, headers = 200, "", dict[str, str]()
            await self._take(scope, receive)
        except Refusal as refusal:
            status, text, headers = refusal.status, f"{refusal}\n", dict(refusal.headers)
        finally:
            self._open_requests -= 1
        named = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(text.encode())), **headers}
        raw = [(name.encode(), value.encode()) for name, value in named.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": text.encode()})

    async def _take(self, scope: Mapping[str, Any], receive: Receive) -> None:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        self._refuse_wrong(scope, headers)
        body = await self._body(headers, receive)
        kept = {name: value for name, value in headers.items() if name not in _HIDDEN_HEADERS}
        is_committed: asyncio.Future[bool] = self._loop.create_future()
        request = Request(scope["path"], kept, wall_clock_ms() * 1000, body)
        self._gathered.append((request.encoded(), is_committed))
        self._has_gathered.set()
        try:
            async with asyncio.timeout(self._limits.timeout_s):
                is_done = await is_committed
        except TimeoutError:
            is_done = False
        if not is_done:
            raise Refusal(503, "not committed: send it again", {"retry-after": "1"})

    def _refuse_wrong(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        path = scope["path"]
        if path != (self._path or "/") and not path.startswith(f"{self._path}/"):
            raise Refusal(404, f"send requests to {self._path or '/'}")
        if scope["method"] not in ("POST", "PUT"):
            raise Refusal(405, "use POST or PUT", {"allow": "POST, PUT"})
        given = hashlib.sha256(headers.get("authorization", "").encode()).hexdigest()
        if self._authorization is not None and not hmac.compare_digest(given, self._authorization):
            raise Refusal(401, "wrong or missing authorization", {"www-authenticate": "Basic, Bearer"})
        if self._open_requests > self._limits.waiting_max:
            raise Refusal(429, "too many requests wait: send it again later", {"retry-after": "1"})
        if self._end - self._committed > self._limits.backlog_bytes_max:
            raise Refusal(429, "too much is not committed yet: send it again later", {"retry-after": "5"})

    async def _body(self, headers: Mapping[str, str], receive: Receive) -> bytes:
        limit = self._limits.body_bytes_max
        too_large = Refusal(413, f"a body may have {limit} bytes", {"connection": "close"})
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > limit:
            raise too_large
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "the connection was closed before the end of the body")
            body += message.get("body", b"")
            if len(body) > limit:
                raise too_large
            if not message.get("more_body"):
                return bytes(body)


def _bound(address: tuple[str, int]) -> socket.socket:
    host, port = address
    deadline = time.monotonic() + _BIND_S
    while True:
        try:
            return socket.create_server(address, family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"listen {host}:{port}: {error.strerror or error}") from error
            if time.monotonic() >= deadline:
                raise MoldauError(
                    f"listen {host}:{port}: the address is in use, by another program or by another query of the "
                    "pipeline: an http source can feed one sink; for several, write it to a topic first"
                ) from error
        time.sleep(_BIND_PAUSE_S)
