"""What must be true of the cluster. The checker sees everything: all logs, the store, all promises.

A record is *committed* once any replica's high watermark passed it; the ledger keeps those, batch by batch, for ever.

    one value       no replica's high watermark ever covers anything else than the ledger
    kept            a replica never loses a committed record that it had, but with its machine or its disk
    nothing lost    whoever is elected has the whole ledger; what was acknowledged is in the ledger, at that offset
    replicated      an acknowledged record is in the logs of as many replicas as `min.insync.replicas` says
    one leader      of one leader epoch, one process of one broker leads
    one line        leader and partition epochs grow by the rules; no producer id is given twice
    order           of each producer, and no duplicates
    read_committed  shows nothing of an aborted transaction, and of each all or nothing
    no surprise     no broker logs an exception that nobody expected
    rest            when the faults are over, every partition has a leader and all its replicas in sync, with equal
                    logs, and every client gets done
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from moldau.errors import MoldauError
from moldau.log.manager import STRAY_SUFFIX
from moldau.log.partition_log import PartitionLog
from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import PartitionRecord, ProducerIdsRecord, Record
from moldau.testing.simulation.cluster import SimulatedBroker
from moldau.testing.simulation.loop import MS
from moldau.wire.batch import check_batch, decode_records, iter_headers
from moldau.wire.topic_partition import TopicPartition
from simulation.faults import Faults
from simulation.transactors import History

if TYPE_CHECKING:
    from simulation.run import Run

SWEEP_US = 20 * MS
RECENT_US = 5_000 * MS


class Violation(Exception):  # noqa: N818 - it is what is looked for
    pass


class Batch(NamedTuple):
    base_offset: int
    next_offset: int
    leader_epoch: int
    crc: int
    values: tuple[bytes, ...]
    """Of the records of data; empty for markers."""


class Checker:
    def __init__(self, run: Run, *, unclean: bool = False) -> None:
        self._run = run
        self._world = run.world
        self._unclean = unclean
        self.history = History(self.fail)
        self.ledger: dict[TopicPartition, list[Batch]] = {}
        self.acknowledged_count = 0
        self.lossy: set[int] = set()
        """Brokers whose machine died, until they registered again."""
        self._died_us: dict[int, int] = {}
        self.excused: set[TopicPartition] = set()
        """Partitions with a leader that nobody could vouch for: allowed only where elections may be unclean."""
        self._acknowledged: dict[TopicPartition, dict[int, bytes]] = {}
        self._agreed: dict[tuple[TopicPartition, PartitionLog], int] = {}
        self._had: dict[tuple[int, TopicPartition], int] = {}
        """Up to where the replica of a broker was seen to agree with the ledger."""
        self._last: dict[tuple[TopicPartition, str], int] = {}
        self._leaders: dict[tuple[TopicPartition, int], PartitionLog] = {}
        self._given_ids: set[int] = set()
        self._world.after(SWEEP_US, self._tick)

    def fail(self, what: str) -> None:
        """Ends the run, wherever it is found."""
        violation = Violation(what)
        self._world.fail(violation)
        raise violation

    # -- the metadata

    def metadata_changed(
        self, epoch: int, records: Sequence[Record], before: MetadataImage, after: MetadataImage
    ) -> None:
        """What a controller of that epoch appended to the store."""
        image = before
        for record in records:
            if isinstance(record, PartitionRecord):
                topic = image.topic_by_id(record.topic_id)
                known = topic.partition(record.index) if topic is not None else None
                if topic is not None and known is not None:
                    self._check_change(TopicPartition(topic.name, record.index), known, record)
            elif isinstance(record, ProducerIdsRecord) and record.next_producer_id <= image.next_producer_id:
                self.fail(f"producer ids go back: {image.next_producer_id} to {record.next_producer_id}")
            image = image.apply([record])
        for broker_id in tuple(self.lossy):
            was, now = before.brokers.get(broker_id), after.brokers.get(broker_id)
            if now is not None and (was is None or was.broker_epoch != now.broker_epoch):
                self._registered(broker_id, before)
        for topic in after.topics.values():
            if before.topics.get(topic.name) is not topic:
                for part in topic.partitions:
                    self._check_partition(TopicPartition(topic.name, part.index), part, after)

    def _registered(self, broker_id: int, image: MetadataImage) -> None:
        """It has told now that it may have lost something."""
        self.lossy.discard(broker_id)
        if self._unclean:
            for topic in image.topics.values():
                self.excused |= {
                    TopicPartition(topic.name, part.index) for part in topic.partitions if broker_id in part.replicas
                }

    def _check_change(self, place: TopicPartition, known: PartitionImage, record: PartitionRecord) -> None:
        for broker_id in known.replicas:
            if broker_id not in record.replicas:
                self._had.pop((broker_id, place), None)
        if record.partition_epoch != known.partition_epoch + 1:
            self.fail(f"{place}: partition epoch {known.partition_epoch} to {record.partition_epoch}")
        moved = record.leader != known.leader
        if not moved <= record.leader_epoch - known.leader_epoch <= 1:
            self.fail(f"{place}: leader {known.leader} to {record.leader} in epoch {record.leader_epoch}")
        if not moved:
            return
        self._world.note(
            "metadata",
            "{}: leader {} of epoch {}, ISR {}, ELR {}",
            place,
            record.leader,
            record.leader_epoch,
            record.isr,
            record.elr,
        )
        if record.leader < 0:
            return
        # A reassignment ends with the report that brings its last replica into the ISR, which may lead at once.
        ends = (known.adding or known.removing) and not (record.adding or record.removing)
        if record.leader not in (*known.isr, *known.elr, *(record.isr if ends else ())):
            if not self._unclean:
                self.fail(f"{place}: {record.leader} is elected out of ISR {known.isr} and ELR {known.elr}")
            self.excused.add(place)
        self._check_holds(place, record.leader)

    def _check_partition(self, place: TopicPartition, part: PartitionImage, image: MetadataImage) -> None:
        isr, replicas = set(part.isr), set(part.replicas)
        problem = None
        if not isr or not isr <= replicas or len(isr) != len(part.isr) or isr & set(part.elr):
            problem = "the ISR is no set of replicas"
        elif part.leader >= 0 and part.leader not in isr:
            problem = "the leader is not in the ISR"
        elif part.leader >= 0 and not all(image.brokers[one].is_active for one in part.isr):
            problem = "a broker of the ISR is fenced"
        if problem is not None:
            self.fail(f"{place}: {problem}: {part}")
        for broker_id in (*part.isr, *part.elr):
            self._check_holds(place, broker_id)

    def _check_holds(self, place: TopicPartition, broker_id: int) -> None:
        """Whoever leads, or may lead, has everything that is committed."""
        if place in self.excused or broker_id in self.lossy:
            return
        log = self._log(broker_id, place)
        ledger = self.ledger.get(place)
        if ledger and log is not None and log.log_end_offset < ledger[-1].next_offset:
            self.fail(
                f"{place}: {ledger[-1].next_offset} offsets are committed, broker {broker_id} has "
                f"{log.log_end_offset} of them and counts as in sync"
            )

    def id_given(self, producer_id: int) -> None:
        if producer_id in self._given_ids:
            self.fail(f"producer id {producer_id} is given twice")
        self._given_ids.add(producer_id)

    # -- the logs

    def may_lose(self, broker_id: int) -> bool:
        """Whether somebody else vouches for every partition of the broker, should its machine die now.

        Two machines at a time are more than two in-sync replicas can bear.
        """
        topics = self._run.cluster.store.image.topics.values()
        vouching = [(*part.isr, *part.elr) for topic in topics for part in topic.partitions]
        return not self.lossy and all(any(one != broker_id for one in members) for members in vouching)

    def machine_died(self, broker_id: int) -> None:
        self.lossy.add(broker_id)
        self._died_us[broker_id] = self._world.now_us
        self._had = {key: offset for key, offset in self._had.items() if key[0] != broker_id}

    def durable_on(self, broker: SimulatedBroker) -> dict[TopicPartition, int]:
        """What it has of the committed records of topics that wait for the disk: the offset behind each."""
        image = self._run.cluster.store.image
        return {
            place: min(log.log_end_offset, self.ledger[place][-1].next_offset)
            for place, log in open_logs(broker).items()
            if place[0] in self._run.scenario.topics
            and self.ledger.get(place)
            and broker.node_id in image.topics[place[0]].partitions[place[1]].isr
        }

    def check_survived(self, broker: SimulatedBroker, durable: Mapping[TopicPartition, int]) -> None:
        contents = broker.disk.contents()
        for place, end_offset in durable.items():
            data = contents.get(f"/data/{place[0]}-{place[1]}/{0:020d}.log", b"")
            found = _end_offset(data)
            if found < end_offset:
                self.fail(
                    f"{place}: {end_offset} offsets are committed on the disk of {broker.host.name}, which has "
                    f"{found} after it lost its power"
                )

    def disk_failed(self, broker_id: int) -> None:
        """What its log directory had is not there for now, and after a restart perhaps not at all."""
        self.machine_died(broker_id)

    def _tick(self) -> None:
        self.sweep()
        self._world.after(SWEEP_US, self._tick)

    def sweep(self) -> None:
        for broker, place, log in self.logs():
            self._check_log(broker, place, log)

    def logs(self) -> Iterator[tuple[SimulatedBroker, TopicPartition, PartitionLog]]:
        """Of all processes that have theirs open."""
        for broker in self._run.cluster.brokers.values():
            for place, log in open_logs(broker).items():
                yield broker, place, log

    def _log(self, broker_id: int, place: TopicPartition) -> PartitionLog | None:
        return open_logs(self._run.cluster.brokers[broker_id]).get(place)

    def _check_log(self, broker: SimulatedBroker, place: TopicPartition, log: PartitionLog) -> None:
        watermark = log.high_watermark
        key = (place, log)
        agreed = min(self._agreed.get(key, 0), log.log_end_offset)
        had = self._had.get((broker.node_id, place), 0)
        if log.log_end_offset < had and place not in self.excused:
            self.fail(f"{place}: broker {broker.node_id} had {had} committed offsets, and has {log.log_end_offset}")
        if agreed >= watermark or place in self.excused:
            self._agreed[key] = agreed
            return
        ledger = self.ledger.setdefault(place, [])
        for batch in batches(log, agreed, watermark):
            if ledger and batch.base_offset < ledger[-1].next_offset:
                known = ledger[bisect_right(ledger, batch.base_offset, key=lambda one: one.base_offset) - 1]
                if known != batch:
                    self.fail(
                        f"{place}: {known} is committed, broker {broker.node_id} shows {batch} below its high "
                        f"watermark of {watermark}"
                    )
            else:
                self._commit(place, batch, ledger[-1] if ledger else None)
                ledger.append(batch)
            agreed = batch.next_offset
        self._agreed[key] = agreed
        self._had[broker.node_id, place] = max(had, agreed)

    def _commit(self, place: TopicPartition, batch: Batch, last: Batch | None) -> None:
        if last is not None and (last.next_offset != batch.base_offset or last.leader_epoch > batch.leader_epoch):
            self.fail(f"{place}: {batch} is committed after {last}")
        acknowledged = self._acknowledged.get(place, {})
        for index, value in enumerate(batch.values):
            offset = batch.base_offset + index
            if acknowledged.get(offset, value) != value:
                self.fail(f"{place}: {acknowledged[offset]!r} was acknowledged at {offset}, {value!r} is committed")
            kind, producer, *numbers = value.decode().split(" ")
            if kind == "n":
                before = self._last.get((place, producer), -1)
                if int(numbers[0]) != before + 1:
                    self.fail(f"{place}: {producer} wrote {numbers[0]} after {before}")
                self._last[place, producer] = int(numbers[0])

    # -- promises to clients

    def acknowledged(self, place: TopicPartition, offset: int, value: bytes) -> None:
        """With acks=all."""
        self.acknowledged_count += 1
        if place in self.excused:
            return
        known = self._acknowledged.setdefault(place, {}).setdefault(offset, value)
        if known != value:
            self.fail(f"{place}: {known!r} and {value!r} were acknowledged at {offset}")
        part = self._run.partition(place)
        brokers = [self._run.cluster.brokers[one] for one in part.replicas]
        having = [
            broker.node_id
            for broker in brokers
            if (log := open_logs(broker).get(place)) is None or log.log_end_offset > offset or self._died(broker)
        ]
        needed = min(self._run.min_insync(place), len(part.replicas))
        if len(having) < needed:
            self.fail(f"{place}: {value!r} was acknowledged at {offset}, only brokers {having} have it")

    def _died(self, broker: SimulatedBroker) -> bool:
        """Whether its machine died a moment ago: it may have had the record before."""
        died_us = self._died_us.get(broker.node_id)
        return died_us is not None and self._world.now_us - died_us < RECENT_US

    def shown(self, place: TopicPartition, offset: int, value: bytes) -> None:
        """To a reader of committed transactions."""
        kind, name, *numbers = value.decode().split(" ")
        if kind == "t":
            self.history.shown(place, offset, name, int(numbers[0]), int(numbers[1]))

    def gap(self, place: TopicPartition, position: int, offset: int) -> None:
        if place not in self.excused:
            self.fail(f"{place}: a reader at {position} is given {offset}")

    def out_of_range(self, place: TopicPartition, position: int) -> None:
        """Readers are never ahead of what is committed."""
        if place not in self.excused:
            self.fail(f"{place}: a reader at {position} is told that this is out of range")

    # -- the end

    def check_at_end(self) -> None:
        self.sweep()
        for place, ledger in self.ledger.items():
            if place in self.excused:
                continue
            values = {batch.base_offset + index: value for batch in ledger for index, value in enumerate(batch.values)}
            for offset, value in self._acknowledged.get(place, {}).items():
                if values.get(offset) != value:
                    self.fail(f"{place}: {value!r} was acknowledged at {offset}, {values.get(offset)!r} is there")
        self.history.check_at_end()
        if Faults.reassign not in self._run.scenario.faults:
            self._check_nothing_is_set_aside()

    def _check_nothing_is_set_aside(self) -> None:
        """No partition goes away in these scenarios, so none is unknown to a broker that has it."""
        for broker in self._run.cluster.brokers.values():
            for path in broker.disk.contents():
                if STRAY_SUFFIX in path and broker.node_id not in self._died_us:
                    self.fail(f"{broker.host.name} does not know a partition that it has: {path}")

    def unrest(self) -> str:
        """What has not come to rest; nothing, if all is well."""
        run = self._run
        for broker in run.cluster.brokers.values():
            if not broker.is_serving:
                return f"broker {broker.node_id} does not serve"
        waiting = [client.name for client in run.clients if not client.is_done]
        if waiting:
            return f"{', '.join(waiting)} are not done"
        for topic in run.cluster.store.image.topics.values():
            for part in topic.partitions:
                problem = self._unrest_of(TopicPartition(topic.name, part.index), part)
                if problem:
                    return f"{topic.name}-{part.index}: {problem}: {part}"
        return ""

    def _unrest_of(self, place: TopicPartition, part: PartitionImage) -> str:
        if set(part.isr) != set(part.replicas) or part.adding or part.removing:
            return "not all replicas are in sync"
        logs = {broker_id: self._log(broker_id, place) for broker_id in part.replicas}
        leader = logs.get(part.leader)
        if leader is None:
            return "it has no leader"
        if leader.last_stable_offset != leader.log_end_offset:
            return f"the last stable offset is {leader.last_stable_offset} of {leader.log_end_offset}"
        for broker_id, log in logs.items():
            if log is None or log.high_watermark != leader.log_end_offset:
                return f"the high watermark of broker {broker_id} is not {leader.log_end_offset}"
        return ""

    def different_logs(self) -> str:
        """Replicas are equal, byte by byte."""
        for topic in self._run.cluster.store.image.topics.values():
            for part in topic.partitions:
                place = TopicPartition(topic.name, part.index)
                contents = {
                    broker_id: tuple(batches(log, log.log_start_offset, log.high_watermark))
                    for broker_id in part.replicas
                    if (log := self._log(broker_id, place)) is not None
                }
                if len(set(contents.values())) > 1:
                    return f"{place}: the replicas of brokers {list(contents)} differ"
        return ""


def open_logs(broker: SimulatedBroker) -> dict[TopicPartition, PartitionLog]:
    return broker.server.node.logs.logs if broker.server is not None else {}


def _end_offset(data: bytes) -> int:
    """Behind the last good batch."""
    end = 0
    with suppress(MoldauError):
        for position, header in iter_headers(data):
            check_batch(data, position, header, strict=False)
            end = header.next_offset
    return end


def batches(log: PartitionLog, start: int, end: int) -> Iterator[Batch]:
    while start < end:
        try:
            data = bytes(log.read(start, 1 << 20, upto_offset=end, min_one=True))
        except (MoldauError, OSError):  # its disk does not work
            return
        if not data:
            return
        for position, header in iter_headers(data):
            values: tuple[bytes, ...] = ()
            if not header.is_control and not log.topic.startswith("__"):
                values = tuple(record.value or b"" for record in decode_records(data, position, header))
            yield Batch(header.base_offset, header.next_offset, header.leader_epoch, header.crc, values)
            start = header.next_offset
