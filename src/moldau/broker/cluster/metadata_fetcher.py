"""Follows the controller: fetches its records, again and again, and makes a newer image of each answer.

A connection to the controller that breaks is no proof of its death, a port that refuses is: then its place in the store
is taken at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from moldau.broker.cluster.controller_shell import ControllerShell
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.metadata_feed import METADATA_TOPIC_ID, apply_result
from moldau.broker.cluster.peers import Peer, Peers, refuses
from moldau.broker.cluster.takeover import Takeover
from moldau.errors import ErrorCode, KafkaError
from moldau.log_limits import LogLimit
from moldau.metadata.stores.store import ControllerTerm
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.fetch import FetchPartition, FetchRequest, FetchTopic, encode_fetch_request, parse_fetch_response

logger = logging.getLogger(__name__)

POLL_WAIT_MS = 5_000
"""How long the controller may hold a fetch of metadata when nothing changes."""
RETRY_S = 0.05

_FETCH_VERSION = APIS[ApiKey.FETCH].max_version
_NOT_READY = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH)
"""How a broker responds that has been elected controller but has not begun."""


class MetadataFetcher:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        controller: ControllerShell,
        peers: Peers,
        *,
        takeover: Takeover,
        take_over: Callable[[int], Awaitable[object]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """`take_over` begins the epoch after that of a controller that is known to be dead."""
        self.has_image = asyncio.Event()
        """Set when this broker knows the metadata of its cluster, from another controller or as the controller."""
        self._me = me
        self._metadata = metadata
        self._controller = controller
        self._peers = peers
        self._takeover = takeover
        self._take_over = take_over
        self._loop = loop
        self._is_changed = asyncio.Event()
        self._log_limit = LogLimit(clock=loop.time)

    def on_new_controller(self) -> None:
        """The controller changed, or there is none at the moment."""
        self._is_changed.set()

    async def run(self) -> None:
        while True:
            term = self._controller.term
            self._is_changed.clear()
            if term is None or self._me.is_elected(term):
                await self._is_changed.wait()
                continue
            peer = self._peers.at((term.host, term.port), "metadata")
            following = asyncio.ensure_future(self._follow(peer, term))
            changing = asyncio.ensure_future(self._is_changed.wait())
            try:
                await asyncio.wait({following, changing}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changing.cancel()
                was_following = following.cancel()
            if was_following:
                with suppress(asyncio.CancelledError):
                    await following
                peer.close()

    async def _follow(self, peer: Peer, term: ControllerTerm) -> None:
        """One fetch after the other, until it fails."""
        try:
            while True:
                await self._fetch(peer, term)
        except Exception as error:  # any error: a broker that stops fetching metadata cannot recover
            if self._log_limit.allows((term, str(error))):
                level = logging.DEBUG if self._is_too_early(error) else logging.INFO
                extra = {"controller": term.node_id, "why": str(error)}
                logger.log(level, "lost contact with the controller", extra=extra)
            if await refuses(self._loop, (term.host, term.port)):
                await self._take_over(term.epoch)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_changed.wait(), RETRY_S)

    def _is_too_early(self, error: Exception) -> bool:
        """A cluster that starts: the controller is elected but not ready."""
        return not self.has_image.is_set() and isinstance(error, KafkaError) and error.code in _NOT_READY

    async def _fetch(self, peer: Peer, term: ControllerTerm) -> None:
        me, metadata = self._me, self._metadata
        image = metadata.newest
        asked = FetchPartition(0, current_leader_epoch=term.epoch, fetch_offset=image.version)
        request = FetchRequest(
            replica_id=me.node_id if me.broker_epoch >= 0 else -1,
            replica_epoch=me.broker_epoch,
            max_wait_ms=POLL_WAIT_MS,
            min_bytes=1,
            topics=[FetchTopic(None, METADATA_TOPIC_ID, [asked])],
        )
        body = encode_fetch_request(_FETCH_VERSION, request)
        frame = await peer.ask_raw(ApiKey.FETCH, _FETCH_VERSION, [body], timeout_s=2 * POLL_WAIT_MS / 1000)
        ((_, _, (result,)),) = parse_fetch_response(_FETCH_VERSION, frame).topics
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code), "the controller refused a fetch of metadata")
        self._takeover.on_contact(term.epoch)
        newer = apply_result(image, result)
        if newer is not image:
            if self.has_image.is_set():
                metadata.follow(newer)
                await metadata.applied(newer.version)
            else:
                metadata.begin_with(newer)
                self.has_image.set()
        elif image.cluster_id:  # before there is one, nothing is known, and no log would seem to belong here
            self.has_image.set()
