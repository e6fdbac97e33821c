"""The shell around the controller: who it is, and, while it is this broker, the one place where metadata changes.

    step(image) → records, reply      planned on the newest image, by `moldau.cluster` and `moldau.metadata`
    store.append                      durable, and refused if another controller has begun: many steps share one write
    feed                              to the brokers, who wait for it (`handlers.metadata_feed`)
    reply

A broker knows of a change only when it is durable, so no image is ever taken back. Whoever changed something on a
user's behalf waits for `everywhere`: then that user finds it on any broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from moldau.broker.metadata_feed import MetadataFeed
from moldau.cluster.controller import Controller
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.log.meta_properties import read_cluster_id
from moldau.metadata.image import ImageDraft, MetadataImage
from moldau.metadata.records import ClusterRecord, Record
from moldau.metadata.store import Candidate, DeposedError, Leadership, MetadataStore
from moldau.wire.uuids import random_uuid, uuid_to_text

if TYPE_CHECKING:
    from moldau.broker.node import BrokerNode

log = logging.getLogger(__name__)

STEPS_MAX = 1000
"""Steps that share one write: enough for a storm of them, few enough to be answered soon."""
EVERYWHERE_TIMEOUT_S = 1.0
"""How long a change waits for the brokers to follow. One that hangs must not hold up those who change things."""
TICK_INTERVAL_S = 0.1
STAND_ASIDE_S = 5.0
"""More than an election takes."""

T = TypeVar("T")
Step = Callable[[MetadataImage], tuple[Sequence[Record], T]]


class ControllerShell:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self.leadership: Leadership | None = None
        """The newest that is known here; None while an election goes on."""
        self.machine: Controller | None = None
        """There while this broker is the controller."""
        self.image = MetadataImage()
        """The newest image, durable; the node's own follows it."""
        self.feed = MetadataFeed(node)
        self._store: MetadataStore | None = None
        self._steps: deque[tuple[Step[Any], asyncio.Future[Any]]] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._stood_aside = False

    @property
    def is_active(self) -> bool:
        return self.machine is not None

    @property
    def epoch(self) -> int:
        return self.leadership.epoch if self.leadership is not None else -1

    @property
    def followed(self) -> dict[int, int]:
        """The version that each broker has made true, as far as this controller knows."""
        return self.feed.followed

    # -- being elected

    def open_alone(self, store: MetadataStore) -> MetadataImage:
        """For a broker without a cluster: nobody else can be elected. Blocks."""
        elected: list[Leadership | None] = []
        self._store = store
        store.open()
        store.campaign(Candidate(self._node.node_id, "", 0), elected.append)
        leadership = elected[-1]
        assert leadership is not None
        self._take_over(leadership, store.load(leadership.epoch))
        return self.image

    def adopt(self, records: Sequence[Record]) -> MetadataImage:
        """Topics found on the disk of a broker without a cluster, before it serves anybody. Blocks."""
        assert self._store is not None
        image = self.image.apply(records)
        self._store.append(self.epoch, records, image)
        self.image = image
        self.feed.begin(self.epoch, image)
        return image

    async def elected(self, store: MetadataStore, leadership: Leadership) -> None:
        """This broker is the controller of a new epoch."""
        self._store = store
        try:
            image = await self._node.in_thread(store.load, leadership.epoch)
        except DeposedError:
            return  # another one was quicker: we are told of it
        except StorageError as error:
            log.error("elected, but cannot load the metadata", extra={"why": error.message})
            await self._give_way(store)
            return
        if self.leadership != leadership:
            return
        self._take_over(leadership, image)
        log.info("this broker is the controller", extra={"epoch": leadership.epoch, "version": image.version})
        if not image.cluster_id:
            await self.run(lambda image: (self._cluster_id_for(image), None))
        self._node.follow(self.image)
        self._node.spawn(self._tick_forever(self.machine))

    def _cluster_id_for(self, image: MetadataImage) -> Sequence[Record]:
        """The id that this broker's folders bear, if they are of a cluster already, or a new one."""
        if image.cluster_id:
            return ()
        return [ClusterRecord(read_cluster_id(self._node.logs.directories) or uuid_to_text(random_uuid()))]

    def _take_over(self, leadership: Leadership, image: MetadataImage) -> None:
        self.leadership = leadership
        self.image = image
        self.machine = Controller(lambda: self._node.config, image, self._node.monotonic_ms())
        self.feed.begin(leadership.epoch, image)
        self.machine.followed = self.feed.followed

    def deposed(self) -> None:
        """Another broker is the controller, or may be: whoever waits here has to ask there."""
        if self.machine is None:
            return
        log.warning("this broker is no longer the controller", extra={"epoch": self.epoch})
        self.machine = None
        self.feed.end()
        for _, waiting in self._steps:
            _fail(waiting, _not_controller())
        self._steps.clear()

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    # -- steps

    async def run(self, step: Step[T]) -> T:
        """The step's reply, when its records are durable. A KafkaError from the step changes nothing."""
        if self.machine is None:
            raise _not_controller()
        answer: asyncio.Future[T] = self._node.loop.create_future()
        self._steps.append((step, answer))
        if self._writing is None:
            self._writing = self._node.spawn(self._write())
            self._writing.add_done_callback(self._write_ended)
        # A client that goes away cancels its request, but no change may stop half-way.
        return await asyncio.shield(answer)

    async def everywhere(self, version: int) -> None:
        """Waits until every broker that lives has made `version` true, for so long as is reasonable."""
        node = self._node
        if not node.config.is_clustered:
            await node.applied(version)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERYWHERE_TIMEOUT_S):
                await self.feed.everywhere(version)

    def _write_ended(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a change of metadata failed inside", exc_info=error)
        if self._steps and self.machine is not None:
            self._writing = self._node.spawn(self._write())
            self._writing.add_done_callback(self._write_ended)

    async def _write(self) -> None:
        while self._steps and self.machine is not None:
            batch = [self._steps.popleft() for _ in range(min(len(self._steps), STEPS_MAX))]
            try:
                await self._write_batch(batch)
            finally:
                for _, answer in batch:
                    _fail(answer, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the change failed inside the controller"))

    async def _write_batch(self, batch: Sequence[tuple[Step[Any], asyncio.Future[Any]]]) -> None:
        before, draft = self.image, ImageDraft(self.image)
        records: list[Record] = []
        replies = []
        for step, answer in batch:
            try:
                planned, reply = step(draft.image())
                draft.add(planned)
            except KafkaError as error:
                _fail(answer, error)
                continue
            records += planned
            replies.append((answer, reply))
        if records:
            after = draft.image()
            assert self._store is not None
            try:
                await self._node.in_thread(self._store.append, self.epoch, records, after)
            except KafkaError as error:
                await self._not_written(before)
                for answer, _ in replies:
                    _fail(answer, error if self.is_active else _not_controller())
                return
            self.image = after
            self.feed.publish(records, before.version)
            self._node.follow(after)
        for answer, reply in replies:
            if not answer.done():
                answer.set_result(reply)

    async def _not_written(self, before: MetadataImage) -> None:
        """Whether the records are there may be in doubt: what the store holds decides, or the next controller."""
        assert self._store is not None
        try:
            image = await self._node.in_thread(self._store.load, self.epoch)
        except KafkaError as error:
            self.deposed()
            if not isinstance(error, DeposedError):
                await self._give_way(self._store)  # to the store it would still be the controller
            return
        if image.version != before.version:
            self.image = image
            self.feed.begin(self.epoch, image)
            self._node.follow(image)

    # -- time

    async def _tick_forever(self, machine: Controller | None) -> None:
        while machine is not None and self.machine is machine:
            try:
                if await self.run(partial(self._tick, machine)):
                    await self._stand_aside()
            except KafkaError as error:
                log.error("the controller's round failed", extra={"why": error.message})
            await asyncio.sleep(TICK_INTERVAL_S)

    def _tick(self, machine: Controller, image: MetadataImage) -> tuple[Sequence[Record], bool]:
        """True: do not fence the silent ones, it may be this broker that is cut off."""
        now_ms = self._node.monotonic_ms()
        is_cut_off = machine.is_cut_off(image, now_ms)
        if is_cut_off and not self._stood_aside:
            return (), True
        if not is_cut_off:
            self._stood_aside = False
        return machine.tick(image, now_ms), False

    async def _stand_aside(self) -> None:
        """Lets the others elect one whom they can reach. Elected again, this one is the only one there is."""
        log.warning("most brokers are silent: this one may be cut off, and lets another be the controller")
        assert self._store is not None
        self._stood_aside = True
        await self._give_way(self._store)

    async def _give_way(self, store: MetadataStore) -> None:
        """Another one may do better; this one stands for election again soon."""
        with suppress(StorageError):
            await self._node.in_thread(store.resign)
        self._node.spawn(self._stand_again(store))

    async def _stand_again(self, store: MetadataStore) -> None:
        await asyncio.sleep(STAND_ASIDE_S)
        await self._node.in_thread(store.stand)

    async def broker_died(self, broker_id: int) -> None:
        """Its port refuses connections: nobody has to wait for its session's end."""
        machine, broker = self.machine, self.image.brokers.get(broker_id)
        if machine is None or broker is None or broker.fenced:
            return
        log.warning("a broker is gone", extra={"broker": broker_id})
        try:
            await self.run(lambda image: (machine.broker_died(image, broker_id, broker.broker_epoch), None))
        except KafkaError as error:
            log.error("cannot fence a broker", extra={"broker": broker_id, "why": error.message})


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")


def _fail(answer: asyncio.Future[Any], error: KafkaError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # who asked may be gone
