"""Passes each frame to its handler, according to the table of APIs (`handlers/api_table.py`).

Raw handlers (Produce, Fetch, ApiVersions) get the bytes of a request and return the bytes of its response. All others
get a message decoded by the protocol package and return a message, or bytes if it can be large. A handler that has to
wait returns an awaitable; one whose work grows with the request is a generator (`turns`). Long messages are decoded and
encoded in a thread.

A malformed frame or an unexpected exception closes only the connection it came from.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Mapping
from types import GeneratorType
from typing import Any, Generic, Protocol, TypeVar, cast

from moldau.broker import needs
from moldau.broker.monitoring.metrics import Histogram
from moldau.broker.network.client_connection import Answer, Buffers, ClientConnection, Pipelined
from moldau.broker.network.request import RequestContext
from moldau.broker.network.served_api import ServedApi
from moldau.broker.network.unsupported_requests import UnsupportedRequests
from moldau.errors import ProtocolError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import decode_request, encode_response, has_more_entries, parse_request_header

logger = logging.getLogger(__name__)

DECODE_INLINE_MAX_BYTES = 4 * 1024
"""A longer message can hold enough small entries to keep the loop for many milliseconds: a thread decodes it."""
ENCODE_INLINE_MAX = 200
"""Entries in an answer that are encoded on the loop: two milliseconds."""

_AT_ONCE = frozenset({bytes, list, type(None)})
"""Types of answers that are there when the handler returns."""


class Broker(
    needs.HasEnvironment,
    needs.HasTurns,
    needs.HasThreads,
    needs.HasMetrics,
    needs.HasConnections,
    needs.HasController,
    needs.HasControllerChannel,
    Protocol,
):
    """What the dispatcher itself uses; the handlers in its table may need more."""

    @property
    def is_serving(self) -> asyncio.Event:
        """Set from the moment that clients may come."""

    def disconnected(self, connection: ClientConnection) -> None: ...


B = TypeVar("B", bound=Broker)


class Dispatcher(Generic[B]):
    """Connections on one side, handlers on the other."""

    def __init__(self, broker: B, apis: Mapping[int, ServedApi[B]]) -> None:
        self._broker = broker
        self._apis = apis
        self._timer = broker.environment.timer
        self._unsupported = UnsupportedRequests(self._timer)

    def connected(self, connection: ClientConnection) -> bool:
        return self._broker.connections.admit(connection)

    def disconnected(self, connection: ClientConnection) -> None:
        self._broker.connections.remove(connection)
        self._broker.disconnected(connection)

    def handle(self, connection: ClientConnection, frame: memoryview) -> Answer:
        began_s = self._timer()
        header = parse_request_header(frame)
        key = header.api_key
        version = header.api_version
        served = self._apis.get(key)
        context = RequestContext(key, version, header.correlation_id, header.client_id, connection)
        if served is None or not served.api.min_version <= version <= served.api.max_version:
            if served is None or key != ApiKey.API_VERSIONS:  # its handler has an answer for newer clients
                raise self._unsupported.refuse(context, None if served is None else served.api)
            return cast(Answer, served.handler(self._broker, context, frame[header.body_offset :]))
        if len(frame) > served.bytes_max:
            raise ProtocolError(
                f"{served.api.name} request of {len(frame)} bytes exceeds the limit of {served.bytes_max}"
            )
        if not self._broker.is_serving.is_set() and key != ApiKey.API_VERSIONS and not context.is_from_broker:
            return self._handle_later(connection, bytearray(frame))
        metrics = self._broker.metrics
        metrics.requests[key] += 1
        metrics.bytes_in += len(frame)
        answer = self._answer(served, context, frame[header.body_offset :])
        if type(answer) in _AT_ONCE:
            metrics.latencies[key].observe(self._timer() - began_s)
            return answer
        return self._measured(answer, metrics.latencies[key], began_s)

    def _measured(self, answer: Any, latency: Histogram, began_s: float) -> Answer:
        """For answers that come later."""

        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                latency.observe(self._timer() - began_s)

        async def measured() -> Buffers | Pipelined | None:
            result: Buffers | Pipelined | None = await answer
            if isinstance(result, Pipelined):
                result.future.add_done_callback(done)
            else:
                latency.observe(self._timer() - began_s)
            return result

        future = answer.future if isinstance(answer, Pipelined) else answer
        if not isinstance(future, asyncio.Future):
            return measured()
        future.add_done_callback(done)
        return cast(Answer, answer)

    def _answer(self, served: ServedApi[B], context: RequestContext, view: memoryview) -> Answer:
        try:
            if served.is_raw:
                answer: Answer = served.handler(self._broker, context, view)
                return answer
            body = bytes(view)
            if served.is_forwarded and not self._broker.controller.is_active and not context.is_from_broker:
                return self._forward(served, context, body)
            if len(body) > DECODE_INLINE_MAX_BYTES:
                return self._encode_later(served, context, self._handle_large(served, context, body))
            message = decode_request(context.key, context.version, body, served.entries_max)
            response = self._respond(served, context, message)
            if inspect.isawaitable(response):
                return self._encode_later(served, context, response)
            return _framed(context, response)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._unexpected(served, context, error) from error

    async def _handle_later(self, connection: ClientConnection, frame: bytearray) -> Buffers | Pipelined | None:
        """A client that comes while the broker joins its cluster waits for it."""
        await self._broker.is_serving.wait()
        answer = self.handle(connection, memoryview(frame))
        return await answer if inspect.isawaitable(answer) else answer

    async def _forward(self, served: ServedApi[B], context: RequestContext, body: bytes) -> Buffers:
        # What is malformed ends here. The controller would close the connection, and others' requests are on it, too.
        await self._decode_in_thread(served, context, body)
        answer = await self._broker.controller_channel.forward(context, body)
        if answer is not None:
            return answer
        return await self._encode_later(served, context, self._handle_large(served, context, body))

    def _respond(self, served: ServedApi[B], context: RequestContext, message: Any) -> Any:
        """The response, or an awaitable of it."""
        response = served.handler(self._broker, context, message)
        return self._broker.turns.run(response) if isinstance(response, GeneratorType) else response

    async def _handle_large(self, served: ServedApi[B], context: RequestContext, body: bytes) -> Any:
        response = self._respond(served, context, await self._decode_in_thread(served, context, body))
        return await response if inspect.isawaitable(response) else response

    def _decode_in_thread(self, served: ServedApi[B], context: RequestContext, body: bytes) -> Awaitable[Any]:
        return self._broker.threads.compute(decode_request, context.key, context.version, body, served.entries_max)

    async def _encode_later(self, served: ServedApi[B], context: RequestContext, waiting: Awaitable[Any]) -> Buffers:
        try:
            response = await waiting
            if has_more_entries(response, ENCODE_INLINE_MAX):
                return await self._broker.threads.compute(_framed, context, response)
            return _framed(context, response)
        except ProtocolError:
            raise
        except Exception as error:
            raise self._unexpected(served, context, error) from error

    def _unexpected(self, served: ServedApi[B], context: RequestContext, error: Exception) -> ProtocolError:
        name = served.api.name
        self._broker.metrics.unexpected_errors += 1
        logger.error(
            "internal error in %s v%d (please report it)",
            name,
            context.version,
            exc_info=error,
            extra={"client": context.client_id},
        )
        return ProtocolError(f"{name} v{context.version} failed with an internal error: {error!r}")


def _framed(context: RequestContext, response: Any) -> Buffers:
    """A handler whose answers can be large has packed them itself."""
    return response if isinstance(response, bytes | list) else encode_response(context.correlation_id, response)
