"""Stands for `broker.controller` and `broker.metadata_feed`: plan on the newest image, make it durable, publish."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.cluster.controller import Controller
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import ImageDraft, MetadataImage
from moldau.metadata.records import ClusterRecord, Record
from simulation.network import Answer, Failure
from simulation.store import Append, Elected, Refusal
from simulation.world import MS

if TYPE_CHECKING:
    from simulation.broker import Broker

TICK_US = 100 * MS
STAND_ASIDE_US = 1_000 * MS
FEED_WAIT_US = 2_000 * MS
SNAPSHOT_AFTER = 40
"""Records that the feed keeps; whoever is farther behind gets a snapshot."""

Step = Callable[[Controller, MetadataImage], tuple[Sequence[Record], Any]]


class Feed(NamedTuple):
    """What a broker asks the controller for: the records after `version`."""

    epoch: int
    version: int


class News(NamedTuple):
    """Records that follow what was asked for, or those of a whole image (`snapshot` is its version)."""

    records: Sequence[Record]
    snapshot: int | None = None


class ControllerShell:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.elected: Elected | None = None
        self.machine: Controller | None = None
        self.image = MetadataImage()
        self._spent_epoch = -1
        self._stood_aside = False
        self.stands = True
        """For election."""
        self._steps: deque[tuple[Step, Answer]] = deque()
        self._is_writing = False
        self._start = 0
        self._records: list[Record] = []
        self._waiting: list[tuple[int, Answer]] = []

    # -- elections

    def leads(self, elected: Elected | None) -> None:
        known = self.elected
        if elected is not None and known is not None and elected.epoch <= known.epoch:
            return
        self.deposed()
        self.elected = elected
        if elected is not None and elected.node_id == self._broker.broker_id:
            if elected.epoch <= self._spent_epoch:
                self._broker.store.resign(elected)  # what it began in that epoch may still arrive
                self.elected = None  # and should the store not hear of it: it is told again
                return
            self._spent_epoch = elected.epoch
            self._load(elected)
        self._broker.controller_changed()

    def _load(self, elected: Elected) -> None:
        self._broker.store.load(elected.epoch, lambda image: self._loaded(elected, image))

    def _loaded(self, elected: Elected, image: MetadataImage | Refusal | Failure) -> None:
        if self.elected != elected:
            return
        if not isinstance(image, MetadataImage):
            self._broker.after(TICK_US, self._load, elected)
            return
        broker = self._broker
        broker.world.note("{}: controller of epoch {} at version {}", broker.name, elected.epoch, image.version)
        self.image = image
        self.machine = Controller(lambda: broker.config, image, broker.world.now_ms)
        self._start, self._records = image.version, []
        if not image.cluster_id:
            self.run(lambda _, image: ([] if image.cluster_id else [ClusterRecord("c")], None), lambda _: None)
        broker.follow(image)
        broker.after(TICK_US, self._tick, elected.epoch)
        broker.bury_the_dead()

    def deposed(self) -> None:
        if self.machine is None:
            return
        self._broker.world.note("{}: no longer the controller", self._broker.name)
        self.machine = None
        for _, answer in self._steps:
            answer(_not_controller())
        self._steps.clear()
        for _, answer in self._waiting:
            answer(_not_controller())
        self._waiting.clear()

    def _tick(self, epoch: int) -> None:
        if self.machine is not None and self.elected is not None and self.elected.epoch == epoch:
            self.run(self._round, self._stand_aside_if)
            self._broker.after(TICK_US, self._tick, epoch)

    def _round(self, machine: Controller, image: MetadataImage) -> tuple[Sequence[Record], bool]:
        """True: it may be this broker that is cut off."""
        now_ms = self._broker.monotonic_ms()
        is_isolated = machine.is_isolated(image, now_ms)
        if is_isolated and not self._stood_aside:
            return (), True
        if not is_isolated:
            self._stood_aside = False
        return machine.tick(image, now_ms), False

    def _stand_aside_if(self, is_isolated: bool | KafkaError) -> None:
        if is_isolated is True and self.elected is not None:
            self._broker.world.note("{}: stands aside", self._broker.name)
            self._stood_aside, self.stands = True, False
            self._broker.store.resign(self.elected)
            self._broker.after(STAND_ASIDE_US, self._stand)

    def _stand(self) -> None:
        self.stands = True

    # -- steps

    def run(self, step: Step, answer: Answer) -> None:
        """`answer` gets the step's reply when its records are durable, or a KafkaError."""
        if self.machine is None:
            answer(_not_controller())
            return
        self._steps.append((step, answer))
        if not self._is_writing:
            self._is_writing = True
            self._broker.soon(self._write)

    def _write(self) -> None:
        machine, elected = self.machine, self.elected
        if not self._steps or machine is None or elected is None:
            self._is_writing = False
            return
        batch, self._steps = self._steps, deque()
        before, draft = self.image, ImageDraft(self.image)
        records: list[Record] = []
        replies: list[tuple[Answer, Any]] = []
        for step, answer in batch:
            try:
                planned, reply = step(machine, draft.image())
            except KafkaError as error:
                answer(error)
                continue
            draft.add(planned)
            records += planned
            replies.append((answer, reply))
        if not records:
            self._reply(replies)
            return
        append, after = Append(elected.epoch, before.version, records), draft.image()

        def kept(outcome: Refusal | None) -> None:
            if outcome is None:
                self._publish(elected, before, records, after)
                self._reply(replies)
                return
            if outcome.is_deposed and self.elected == elected:
                self.deposed()
            error = _not_controller() if outcome.is_deposed else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "refused")
            self._reply([(answer, error) for answer, _ in replies])

        self._broker.store.append(append, kept, goes_on=lambda: self.machine is machine)

    def _publish(
        self, elected: Elected, before: MetadataImage, records: Sequence[Record], after: MetadataImage
    ) -> None:
        if self.elected != elected:
            return  # deposed meanwhile: the next controller has found the records
        self.image = after
        self._records += records
        kept = len(self._records) - SNAPSHOT_AFTER
        if kept > 0:
            del self._records[:kept]
            self._start += kept
        self._broker.follow(after)
        waiting, self._waiting = self._waiting, []
        for version, answer in waiting:
            answer(self._news(version))

    def _reply(self, replies: Sequence[tuple[Answer, Any]]) -> None:
        for answer, reply in replies:
            answer(reply)
        self._write()

    # -- the feed

    def feed(self, asked: Feed, answer: Answer) -> None:
        if self.machine is None or self.elected is None or asked.epoch != self.elected.epoch:
            answer(_not_controller())
        elif asked.version != self.image.version:
            answer(self._news(asked.version))
        else:
            waiting = (asked.version, answer)
            self._waiting.append(waiting)
            self._broker.after(FEED_WAIT_US, self._end_wait, waiting)

    def _end_wait(self, waiting: tuple[int, Answer]) -> None:
        if any(one is waiting for one in self._waiting):
            self._waiting = [one for one in self._waiting if one is not waiting]
            waiting[1](News(()))

    def _news(self, version: int) -> News:
        if self._start <= version <= self.image.version:
            return News(tuple(self._records[version - self._start :]))
        return News(tuple(self.image.to_records()), self.image.version)


def apply_news(image: MetadataImage, news: News) -> MetadataImage:
    if news.snapshot is not None:
        return MetadataImage(version=news.snapshot - len(news.records)).apply(news.records)
    return image.apply(news.records) if news.records else image


def _not_controller() -> KafkaError:
    return KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
