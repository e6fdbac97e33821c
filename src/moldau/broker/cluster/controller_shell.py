"""The shell around the controller: who it is and, while it is this broker, the only place where metadata changes.

    step(image) → records, reply      planned on the newest image, by `moldau.cluster` and `moldau.metadata`
    store.append                      durable; refused if there is a newer controller; many steps share one write
    feed                              to the brokers, which wait for it (`metadata_feed`)
    reply

A broker learns of a change only when it is durable, so no image is ever rolled back. A change that a client requested
waits for `everywhere`: after that, the client finds it on any broker.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from moldau.broker.background import Spawn
from moldau.broker.cluster.local_broker import LocalBroker
from moldau.broker.cluster.metadata_cache import MetadataCache
from moldau.broker.cluster.metadata_feed import MetadataFeed
from moldau.broker.threads import Lane
from moldau.broker.turns import Turns, Work
from moldau.clocks import Clock
from moldau.cluster.controller import Controller
from moldau.cluster.moves import IsrMove, LeaderMove, moves
from moldau.errors import ErrorCode, FencedControllerError, KafkaError, StorageError
from moldau.log.manager import LogManager
from moldau.log.meta_properties import read_cluster_id
from moldau.log_limits import LogLimit
from moldau.metadata.cluster_wide import initial_records
from moldau.metadata.image import ImageDraft, MetadataImage
from moldau.metadata.records import ClusterRecord, Record
from moldau.metadata.stores.store import Candidate, ControllerTerm, MetadataStore
from moldau.wire.constants import NO_LEADER
from moldau.wire.uuids import uuid_to_text

logger = logging.getLogger(__name__)

STEPS_MAX = 1000
"""Steps that share one write: enough for a burst of them, few enough to be answered soon."""
EVERYWHERE_TIMEOUT_S = 1.0
"""How long a change waits for the brokers to follow. One that hangs must not block changes."""
TICK_INTERVAL_S = 0.1
LATE_MS = 1_000
"""A round that is later than this was held up: by a store that did not answer, or because the process was suspended."""
RESIGNED_S = 5.0
"""More than an election takes."""

T = TypeVar("T")
Planned: TypeAlias = "tuple[Sequence[Record], T]"
Plan: TypeAlias = "Callable[[MetadataImage], Sequence[Record] | Work[Sequence[Record]]]"
Step: TypeAlias = "Callable[[MetadataImage], Planned[T] | Work[Planned[T]]]"
_Request: TypeAlias = "tuple[Step[Any], asyncio.Future[Any]]"
_Reply = tuple["asyncio.Future[Any]", Any]


class _Contact(NamedTuple):
    """The newest heartbeat of a broker."""

    connection: object
    at_s: float
    answer_arrived_s: float
    """The broker is known to have got an answer then, or later."""


class ElectionCounters(Protocol):
    isr_shrinks: int
    isr_expands: int
    leader_elections: int
    unclean_leader_elections: int


class ControllerShell:
    def __init__(
        self,
        me: LocalBroker,
        metadata: MetadataCache,
        *,
        store_thread: Lane,
        turns: Turns,
        spawn: Spawn,
        metrics: ElectionCounters,
        new_cluster_id: Callable[[], str],
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        monotonic_ms: Clock,
    ) -> None:
        """`new_cluster_id` may block; it is called for the first controller of a cluster."""
        self._me = me
        self._metadata = metadata
        self._store_thread = store_thread
        self._turns = turns
        self._spawn = spawn
        self._metrics = metrics
        self._new_cluster_id = new_cluster_id
        self._loop = loop
        self._monotonic_ms = monotonic_ms
        self.term: ControllerTerm | None = None
        """The newest known one; None during an election."""
        self.machine: Controller | None = None
        """Set while this broker is the controller."""
        self.image = MetadataImage()
        """The newest image, durable; the current image of the broker follows it."""
        self.feed = MetadataFeed(metadata, loop, clock)
        self.deposed_s = 0.0
        """When this broker last ceased to be the controller, on the loop's clock."""
        self._store: MetadataStore | None = None
        self._steps: deque[_Request] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._ticked_ms = 0
        self._has_resigned = False
        self._log_limit = LogLimit(clock=loop.time)
        self._began_s = 0.0
        self._contacts: dict[int, _Contact] = {}

    @property
    def is_active(self) -> bool:
        return self.machine is not None

    @property
    def epoch(self) -> int:
        return self.term.epoch if self.term is not None else -1

    @property
    def leader_id(self) -> int:
        """The controller's id; -1 while none is known."""
        return self.term.node_id if self.term is not None else -1

    @property
    def applied_versions(self) -> Mapping[int, int]:
        """The version that each broker has applied, as far as this controller knows."""
        return self.feed.applied_versions

    # -- contact with brokers

    def on_heartbeat(self, broker_id: int, connection: object) -> None:
        """A registered broker sent a heartbeat, and gets an answer now.

        The heartbeat may have waited in the socket while this process was suspended, so it does not tell when it was
        sent. But a broker sends the next one on a connection only after the answer to the one before has arrived.
        """
        before = self._contacts.get(broker_id)
        if before is None:
            arrived_s = self._began_s
        else:
            arrived_s = before.at_s if before.connection is connection else before.answer_arrived_s
        self._contacts[broker_id] = _Contact(connection, self._loop.time(), arrived_s)

    @property
    def majority_contact_s(self) -> float:
        """Since then so many brokers have got an answer that the others are no majority: they cannot have replaced this
        controller within the time that they have to wait (`takeover`)."""
        others = [id_ for id_, one in self.image.brokers.items() if one.is_active and id_ != self._me.node_id]
        needed = len(others) // 2
        if needed == 0:
            return self._loop.time()
        arrived_s = [self._contacts[id_].answer_arrived_s if id_ in self._contacts else self._began_s for id_ in others]
        return sorted(arrived_s, reverse=True)[needed - 1]

    # -- being elected

    def open_alone(self, store: MetadataStore) -> MetadataImage:
        """Opens the store of a standalone broker, which is always elected. Blocks."""
        elected: list[ControllerTerm | None] = []
        self._store = store
        store.open()
        store.campaign(Candidate(self._me.node_id, "", 0), elected.append)
        term = elected[-1]
        assert term is not None
        self._take_over(term, store.load(term.epoch))
        return self.image

    def adopt(self, records: Sequence[Record]) -> MetadataImage:
        """Writes the records of topics found on the disk of a standalone broker, before it serves clients. Blocks."""
        assert self._store is not None
        image = self.image.apply(records)
        self._store.append(self.epoch, records, image)
        self.image = image
        self.feed.begin(self.epoch, image)
        return image

    async def elected(self, store: MetadataStore, term: ControllerTerm) -> None:
        """This broker is the controller of a new epoch."""
        self._store = store
        self._began_s = self._loop.time()  # other brokers may follow it from now on, however long loading takes
        try:
            image = await self._store_thread(store.load, term.epoch)
            if self.term != term:
                return
            self._take_over(term, image)
            await self.run(self._first_records)  # the first step: later plans depend on it
        except FencedControllerError:
            return  # another broker was elected, and the store reports it
        except Exception as error:  # any error: for the store this broker is the controller
            logger.error("elected as controller, but cannot load the metadata; resigning", extra={"why": str(error)})
            if self.term == term:
                self.deposed()
                await self._resign(store)
            return
        logger.info("this broker is the controller", extra={"epoch": term.epoch, "version": image.version})
        self._metadata.follow(self.image)
        self._spawn(self._tick_forever(self.machine))

    def _first_records(self, image: MetadataImage) -> tuple[Sequence[Record], None]:
        """Records that the first controller of a cluster writes."""
        return [*self._cluster_id_for(image), *initial_records(image, self._me.config)], None

    def _cluster_id_for(self, image: MetadataImage) -> Sequence[Record]:
        if image.cluster_id:
            return ()
        return [ClusterRecord(self._new_cluster_id())]

    def _take_over(self, term: ControllerTerm, image: MetadataImage) -> None:
        self.term = term
        self.image = image
        self._ticked_ms = self._monotonic_ms()
        self._contacts.clear()
        self.feed.begin(term.epoch, image)
        self.machine = Controller(lambda: self._me.config, image, self._ticked_ms, self.feed.applied_versions)

    def follow(self, term: ControllerTerm | None) -> None:
        """The store has elected a controller, or none at the moment."""
        if term is None or not self._me.is_elected(term) or self.is_active:
            self.deposed()
        self.term = term

    def deposed(self) -> None:
        """Another broker is the controller, or may be: waiting steps fail with NOT_CONTROLLER."""
        if self.machine is None:
            return
        logger.warning("this broker is no longer the controller", extra={"epoch": self.epoch})
        self.machine = None
        self.deposed_s = self._loop.time()
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
        answer: asyncio.Future[T] = self._loop.create_future()
        self._steps.append((step, answer))
        if self._writing is None:
            self._begin_writing()
        # A client that disconnects cancels its request, but no change may stop half-way.
        return await asyncio.shield(answer)

    async def change(self, plan: Plan) -> MetadataImage:
        """Plans on the newest image, writes the records and waits for live brokers to apply them; the current image.

        A KafkaError from the plan changes nothing; NOT_CONTROLLER if this broker is not the controller.
        """

        def step(image: MetadataImage) -> Work[tuple[Sequence[Record], int]]:
            planned = plan(image)
            records = planned if isinstance(planned, Sequence) else (yield from planned)
            return records, image.version + len(records)

        await self.everywhere(await self.run(step))
        return self._metadata.image

    async def everywhere(self, version: int) -> None:
        """Waits until every live broker has applied `version`, for a limited time."""
        if not self._me.config.is_clustered:
            await self._metadata.applied(version)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(EVERYWHERE_TIMEOUT_S):
                await self.feed.everywhere(version)

    def _begin_writing(self) -> None:
        self._writing = self._spawn(self._write())
        self._writing.add_done_callback(self._write_ended)

    def _write_ended(self, task: asyncio.Task[None]) -> None:
        self._writing = None
        if task.cancelled():  # the broker closes
            return
        if (error := task.exception()) is not None:
            logger.error("internal error while changing metadata (please report it)", exc_info=error)
        if self._steps and self.machine is not None:
            self._begin_writing()

    async def _write(self) -> None:
        while self._steps and self.machine is not None:
            batch = [self._steps.popleft() for _ in range(min(len(self._steps), STEPS_MAX))]
            try:
                await self._write_batch(batch)
            finally:
                for _, answer in batch:
                    _fail(
                        answer,
                        KafkaError(
                            ErrorCode.UNKNOWN_SERVER_ERROR,
                            "the change failed: internal error in the controller (see its log)",
                        ),
                    )

    async def _write_batch(self, batch: Sequence[_Request]) -> None:
        machine, before = self.machine, self.image
        records, replies, after = await self._plan(batch)
        if self.machine is not machine:  # deposed while it planned in turns
            for answer, _ in replies:
                _fail(answer, _not_controller())
            return
        if records:
            assert self._store is not None
            try:
                await self._store_thread(self._store.append, self.epoch, records, after)
            except KafkaError as error:
                if self.machine is machine:
                    await self._not_written(machine, before)
                for answer, _ in replies:
                    _fail(answer, error if self.machine is machine else _not_controller())
                return
            # Otherwise it was deposed in the meantime. Its records are kept, and its successor (perhaps this broker
            # again) has loaded them.
            if self.machine is machine:
                self.image = after
                self.feed.publish(records, after)
                self._metadata.follow(after)
                self._report_moves(before, after, records)
        for answer, reply in replies:
            if not answer.done():
                answer.set_result(reply)

    def _report_moves(self, before: MetadataImage, after: MetadataImage, records: Sequence[Record]) -> None:
        """Counts the moves now and logs them in turns: a dead broker may have led thousands of partitions."""
        moved = list(moves(before, after, records))
        metrics = self._metrics
        for move in moved:
            if isinstance(move, IsrMove):
                metrics.isr_shrinks += move.is_shrink
                metrics.isr_expands += not move.is_shrink
            else:
                metrics.leader_elections += 1
                metrics.unclean_leader_elections += move.is_unclean
        if moved:
            self._spawn(self._log_moves(moved))

    async def _log_moves(self, moved: Sequence[LeaderMove | IsrMove]) -> None:
        async for move in self._turns.each(moved):
            message = "in-sync replicas changed" if isinstance(move, IsrMove) else "leader moved"
            level = logging.WARNING if isinstance(move, LeaderMove) and move.is_unclean else logging.INFO
            fields = {
                "partition": move.partition,
                "from": _describe(move.before),
                "to": _describe(move.after),
                "why": move.why,
            }
            logger.log(level, message, extra=fields)

    async def _plan(self, batch: Sequence[_Request]) -> tuple[list[Record], list[_Reply], MetadataImage]:
        """The records of all steps, what to reply when they are durable, and the image that they lead to."""
        draft = ImageDraft(self.image)
        records: list[Record] = []
        replies = []
        for step, answer in batch:
            try:
                outcome = step(draft.image())
                planned, reply = outcome if isinstance(outcome, tuple) else await self._turns.finish(outcome)
            except KafkaError as error:
                _fail(answer, error)
                continue
            except Exception:  # a bug in one step must not cost the others
                logger.exception("internal error in a step of the controller (please report it)")
                continue
            draft.add(planned)
            records += planned
            replies.append((answer, reply))
        return records, replies, draft.image()

    async def _not_written(self, machine: Controller | None, before: MetadataImage) -> None:
        """It may be unknown whether the records were written: loads what the store has, or leaves it to the next
        controller."""
        assert self._store is not None
        try:
            image = await self._store_thread(self._store.load, self.epoch)
        except KafkaError as error:
            if self.machine is machine:
                self.deposed()
                if not isinstance(error, FencedControllerError):
                    await self._resign(self._store)  # otherwise the store would keep it as the controller
            return
        if self.machine is machine and image.version != before.version:
            self.image = image
            self.feed.begin(self.epoch, image)
            self._metadata.follow(image)

    # -- time

    async def _tick_forever(self, machine: Controller | None) -> None:
        while machine is not None and self.machine is machine:
            try:
                if await self.run(partial(self._tick, machine)):
                    await self._resign_as_isolated()
            except KafkaError as error:
                if self._log_limit.allows(error.message):
                    logger.error("a periodic check of the controller failed, will retry", extra={"why": error.message})
            await asyncio.sleep(TICK_INTERVAL_S)

    def _tick(self, machine: Controller, image: MetadataImage) -> tuple[Sequence[Record], bool]:
        """True if this broker may be the one that is cut off; then it fences none of the silent brokers."""
        now_ms = self._monotonic_ms()
        late_ms, self._ticked_ms = now_ms - self._ticked_ms - LATE_MS, now_ms
        if late_ms > 0:
            machine.on_suspended(late_ms)
        is_isolated = machine.is_isolated(image, now_ms)
        if is_isolated and not self._has_resigned:
            return (), True
        if not is_isolated:
            self._has_resigned = False
        return machine.tick(image, now_ms), False

    async def _resign_as_isolated(self) -> None:
        """Lets the others elect a controller that they can reach. If this one is elected again, it is the only one."""
        logger.warning("no contact with most brokers: resigning as controller")
        assert self._store is not None
        self._has_resigned = True
        await self._resign(self._store)

    async def _resign(self, store: MetadataStore) -> None:
        """Another broker may succeed; this one stands for election again soon."""
        with suppress(StorageError):
            await self._store_thread(store.resign)
        self._spawn(self._run_again(store))

    async def _run_again(self, store: MetadataStore) -> None:
        await asyncio.sleep(RESIGNED_S)
        await self._store_thread(store.campaign_again)

    def set_last_contact(self, broker_id: int, moment_ms: int) -> None:
        """Starts the session of the broker at that time, unless it has been in contact since."""
        if self.machine is not None and broker_id not in self._contacts:
            self.machine.set_last_contact(broker_id, moment_ms)

    async def broker_died(self, broker_id: int) -> None:
        """Fences a broker whose port refuses connections, without waiting for the end of its session."""
        machine, broker = self.machine, self.image.brokers.get(broker_id)
        if machine is None or broker is None or broker.fenced:
            return
        logger.warning("broker is not reachable, fencing it", extra={"broker": broker_id})
        try:
            await self.run(lambda image: (machine.broker_died(image, broker_id, broker.broker_epoch), None))
        except KafkaError as error:
            logger.error(
                "cannot fence a broker: it stays until its session ends",
                extra={"broker": broker_id, "why": error.message},
            )


def find_cluster_id(logs: LogManager, new_uuid: Callable[[], uuid.UUID]) -> str:
    """The cluster id of the log directories, if they were formatted, else a new one.

    Directories with partitions belong to a cluster that has metadata. If the store has none, it is a different store:
    a new id keeps brokers with data from joining, which would set aside all their logs as strays.
    """
    folders, disk = logs.directories, logs.disk
    files = (name for each in folders for inner in disk.subdirectories(each) for name in disk.names(each / inner))
    known = None if any(name.endswith(".log") for name in files) else read_cluster_id(folders, disk)
    return known or uuid_to_text(new_uuid())


def _describe(brokers: int | tuple[int, ...]) -> str:
    """A leader, or an in-sync set: 1,2,3."""
    known = [str(one) for one in ((brokers,) if isinstance(brokers, int) else sorted(brokers)) if one != NO_LEADER]
    return ",".join(known) or "none"


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")


def _fail(answer: asyncio.Future[Any], error: KafkaError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # retrieved, because the caller may be gone
