"""Requests to the controller, wherever it is: this broker's own, and those of clients that only it can answer."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, Protocol

from moldau.broker.cluster.peers import CONTROLLER, FORWARDING, REQUEST_TIMEOUT_S, Build, Peers
from moldau.broker.network.client_connection import Buffers
from moldau.broker.network.request import RequestContext
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.stores.store import ControllerTerm

FORWARD_TIMEOUT_S = 10.0
"""Most elections take less. After that the client gets NOT_CONTROLLER and retries."""
RETRY_S = 0.05

_PREFIX = struct.Struct(">ii")


class ElectedController(Protocol):
    """Who is the controller, as far as this broker knows (`ControllerShell`)."""

    @property
    def term(self) -> ControllerTerm | None: ...

    @property
    def is_active(self) -> bool:
        """Whether it is this broker."""
        ...


class ControllerChannel:
    def __init__(
        self, node_id: int, peers: Peers, controller: ElectedController, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._node_id = node_id
        self._peers = peers
        self._controller = controller
        self._loop = loop

    async def ask(
        self, key: int, build: Build, *, purpose: str = CONTROLLER, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Any:
        """The controller's answer; KafkaError when none is known or it does not answer."""
        term = self._controller.term
        if term is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "no controller is known at the moment")
        return await self._peers.at((term.host, term.port), purpose).ask(key, build, timeout_s=timeout_s)

    async def forward(self, context: RequestContext, body: bytes) -> Buffers | None:
        """A client's request as it came, so that clients need not know the controller.

        None when this broker has to answer itself, because it is the controller or none was found in time.
        """
        deadline_s = self._loop.time() + FORWARD_TIMEOUT_S
        while self._loop.time() < deadline_s:
            term = self._controller.term
            if self._controller.is_active:
                return None
            if term is not None and term.node_id != self._node_id:
                peer = self._peers.at((term.host, term.port), FORWARDING)
                try:
                    frame = await peer.ask_raw(context.key, context.version, [body])
                except KafkaError:
                    pass  # it may have died just now
                else:
                    return [_PREFIX.pack(len(frame), context.correlation_id), frame[4:]]
            await asyncio.sleep(RETRY_S)
        return None
