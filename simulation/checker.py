"""What must be true after every single step. The checker sees everything: all disks, the store, all promises.

A record is *committed* once any leader's high watermark passed it; the ledger keeps those, offset by offset, for ever.

    one value       no replica's high watermark ever covers anything else than the ledger
    nothing lost    whoever the controller counts as in-sync or eligible has the whole ledger on disk (but for a machine
                    that died and has not come back to tell)
    one leader      of one leader epoch, one life of one broker writes
    one line        every image at a broker is one of the store's; leader and partition epochs grow by the rules
    order           of each producer, and no duplicates
    promises        what was acknowledged is in the ledger, at that offset
    read_committed  shows nothing of an aborted transaction, and of each all or nothing
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from moldau.metadata.image import MetadataImage, PartitionImage
from moldau.metadata.records import BrokerRecord, PartitionRecord, ProducerIdsRecord, Record
from simulation.log import Entry, Log, TopicPartition
from simulation.world import Violation, World


class Checker:
    def __init__(self, world: World, *, unclean: bool = False) -> None:
        self._world = world
        self._unclean = unclean
        self.logs: dict[TopicPartition, dict[int, Log]] = {}
        """Every replica's, by broker: dead or alive."""
        self.touched: list[Log] = []
        """Those of them that changed in this step."""
        self.ledger: dict[TopicPartition, list[Entry]] = {}
        self.lossy: set[int] = set()
        """Brokers whose machine died with part of their logs, until they registered anew."""
        self.excused: set[TopicPartition] = set()
        """Partitions with a leader that nobody could vouch for: allowed only where elections may be unclean."""
        self.committed_count = 0
        self._image = MetadataImage()
        self._images: dict[int, MetadataImage] = {0: self._image}
        self._writers: dict[tuple[TopicPartition, int], tuple[int, int]] = {}
        self._last_sequence: dict[tuple[TopicPartition, str], int] = {}
        self._given_ids: set[int] = set()
        self._seen_watermarks: dict[tuple[TopicPartition, int, int, int], int] = {}

    def fail(self, what: str) -> None:
        raise Violation(what)

    # -- the metadata

    def metadata_changed(self, before: MetadataImage, records: Sequence[Record], after: MetadataImage) -> None:
        image = before
        for record in records:
            if isinstance(record, PartitionRecord):
                topic = image.topic_by_id(record.topic_id)
                known = topic.partition(record.index) if topic is not None else None
                if topic is not None and known is not None:
                    self._check_change((topic.name, record.index), known, record)
            elif isinstance(record, BrokerRecord):
                was = image.brokers.get(record.broker_id)
                if was is None or was.broker_epoch != record.broker_epoch:
                    self._registered(record.broker_id, image)
            elif isinstance(record, ProducerIdsRecord) and record.next_producer_id <= image.next_producer_id:
                self.fail(f"producer ids go back: {image.next_producer_id} to {record.next_producer_id}")
            image = image.apply([record])
        self._image = self._images[after.version] = after
        for topic in after.topics.values():
            for part in topic.partitions:
                self._check_partition((topic.name, part.index), part, after)

    def _registered(self, broker_id: int, image: MetadataImage) -> None:
        """It has told now that it may have lost something. What nobody else has is gone, where that is allowed."""
        if self._unclean and broker_id in self.lossy:
            for topic in image.topics.values():
                for part in topic.partitions:
                    if broker_id in (*part.isr, *part.elr):
                        self._unclean_election((topic.name, part.index), broker_id)
        self.lossy.discard(broker_id)

    def _check_change(self, where: TopicPartition, known: PartitionImage, record: PartitionRecord) -> None:
        if record.partition_epoch != known.partition_epoch + 1:
            self.fail(f"{where}: partition epoch {known.partition_epoch} to {record.partition_epoch}")
        moved = record.leader != known.leader
        if not moved <= record.leader_epoch - known.leader_epoch <= 1:
            self.fail(f"{where}: leader {known.leader} to {record.leader} in epoch {record.leader_epoch}")
        # A reassignment ends with the report that brings its last replica into the ISR, which may lead at once.
        ends = (known.adding or known.removing) and not (record.adding or record.removing)
        eligible = (*known.isr, *known.elr, *(record.isr if ends else ()))
        if moved and record.leader >= 0 and record.leader not in eligible:
            if not self._unclean:
                self.fail(f"{where}: {record.leader} is elected out of ISR {known.isr} and ELR {known.elr}")
            self._unclean_election(where, record.leader)

    def _check_partition(self, where: TopicPartition, part: PartitionImage, image: MetadataImage) -> None:
        isr, replicas = set(part.isr), set(part.replicas)
        problem = None
        if not isr or not isr <= replicas or len(isr) != len(part.isr) or isr & set(part.elr):
            problem = "the ISR is no set of replicas"
        elif part.leader >= 0 and part.leader not in isr:
            problem = "the leader is not in the ISR"
        elif part.leader >= 0 and not all(image.brokers[one].is_active for one in part.isr):
            problem = "somebody of the ISR is fenced"
        if problem is not None:
            self.fail(f"{where}: {problem}: {part}")
        self._check_replicas(where)

    def _unclean_election(self, where: TopicPartition, leader: int) -> None:
        """Where that is allowed, what the new leader does not have is gone, and known to be."""
        log = self.logs[where].get(leader)
        ledger = self.ledger.setdefault(where, [])
        kept = 0 if log is None else log.agreed
        if kept < len(ledger):
            self._world.note("unclean: {} loses {} committed records", where, len(ledger) - kept)
            self.excused.add(where)
            del ledger[kept:]
        for replica in self.logs[where].values():
            replica.agreed = min(replica.agreed, kept)

    def image_applied(self, broker_id: int, image: MetadataImage) -> None:
        known = self._images.get(image.version)
        if known is not image and known != image:
            self.fail(f"broker {broker_id}: its image of version {image.version} is not the store's")

    def ids_given(self, ids: Iterable[int]) -> None:
        for producer_id in ids:
            if producer_id in self._given_ids:
                self.fail(f"producer id {producer_id} is given twice")
            self._given_ids.add(producer_id)

    # -- the logs

    def add_log(self, log: Log) -> None:
        self.logs.setdefault(log.where, {})[log.broker_id] = log
        self.ledger.setdefault(log.where, [])

    def remove_log(self, log: Log) -> None:
        self.logs[log.where].pop(log.broker_id, None)

    def machine_died(self, broker_id: int) -> None:
        self.lossy.add(broker_id)

    def may_lose(self, broker_id: int) -> bool:
        """Whether somebody else vouches for every partition of the broker, should its machine die now.

        Two machines at a time are more than two in-sync replicas can bear.
        """
        vouching = [(*part.isr, *part.elr) for topic in self._image.topics.values() for part in topic.partitions]
        return not self.lossy and all(any(one != broker_id for one in members) for members in vouching)

    def written(self, log: Log, leader_epoch: int, life: int) -> None:
        """As the leader, in that epoch."""
        writer = (log.broker_id, life)
        known = self._writers.setdefault((log.where, leader_epoch), writer)
        if known != writer:
            self.fail(f"{log.where}: {known} and {writer} (broker, life) write in leader epoch {leader_epoch}")

    def after_step(self) -> None:
        touched = self.touched
        while touched:
            log = touched.pop()
            log.is_touched = False
            if self.logs[log.where].get(log.broker_id) is log:
                self._check_log(log.where, log)
                self._check_replicas(log.where)

    def _check_log(self, where: TopicPartition, log: Log) -> None:
        ledger, entries = self.ledger[where], log.entries
        watermark = log.high_watermark
        self._agree(log, ledger)
        if log.agreed >= watermark or where in self.excused:
            return
        if log.agreed < len(ledger):
            at = log.agreed
            self.fail(f"{log.name}: offset {at} is {ledger[at]} for ever, broker {log.broker_id} shows {entries[at]}")
        for entry in entries[log.agreed : watermark]:
            self._commit(where, entry)
            ledger.append(entry)
        log.agreed = watermark
        self._world.note("{}: committed up to {}, by broker {}", log.name, watermark, log.broker_id)

    @staticmethod
    def _agree(log: Log, ledger: Sequence[Entry]) -> None:
        entries, agreed = log.entries, log.agreed
        upto = min(len(entries), len(ledger))
        while agreed < upto and entries[agreed] == ledger[agreed]:
            agreed += 1
        log.agreed = agreed

    def _commit(self, where: TopicPartition, entry: Entry) -> None:
        self.committed_count += 1
        ledger = self.ledger[where]
        if ledger and ledger[-1].header.leader_epoch > entry.header.leader_epoch:
            self.fail(f"{where}: leader epochs go back at {entry}")
        payload = entry.payload
        if isinstance(payload, tuple) and payload[0] == "n":
            _, producer, number = payload
            last = self._last_sequence.get((where, producer), -1)
            if number != last + 1 and where not in self.excused:
                self.fail(f"{where}: producer {producer} wrote {number} after {last}")
            self._last_sequence[where, producer] = number

    def _check_replicas(self, where: TopicPartition) -> None:
        topic = self._image.topics.get(where[0])
        part = topic.partition(where[1]) if topic is not None else None
        if part is None or where in self.excused:
            return
        ledger, replicas = self.ledger.get(where, []), self.logs.get(where, {})
        for broker_id in (*part.isr, *part.elr) if ledger else ():
            log = replicas.get(broker_id)
            if broker_id in self.lossy:
                continue
            if log is not None and log.agreed < len(ledger):
                self._agree(log, ledger)
            if log is None or log.agreed < len(ledger):
                has = None if log is None else (log.agreed, log.log_end_offset)
                self.fail(f"{where}: {len(ledger)} records are committed, broker {broker_id} has {has} of them; {part}")

    # -- promises to clients

    def acknowledged(self, where: TopicPartition, offset: int, payload: Any) -> None:
        if where in self.excused:
            return
        ledger = self.ledger[where]
        if offset >= len(ledger) or ledger[offset].payload != payload:
            found = ledger[offset] if offset < len(ledger) else "nothing"
            self.fail(f"{where}: {payload} was acknowledged at {offset}, where {found} is committed")

    def watermark_seen(self, log: Log, leader_epoch: int, life: int, watermark: int) -> None:
        key = (log.where, leader_epoch, log.broker_id, life)
        if watermark < self._seen_watermarks.get(key, 0):
            self.fail(f"{log.name}: the high watermark went back to {watermark} in leader epoch {leader_epoch}")
        self._seen_watermarks[key] = watermark
