"""The dead letters of a pipeline: what is in their topic, and sending them back to where they came from.

`redrive` is one transaction with the transactional id `<pipeline>.redrive`: it writes the records as they were and
commits, in the consumer group of the same name, which dead letters are done. So a redrive that was killed has sent
nothing, a second one sends nothing twice, and two at the same time fence each other.

Dead letters may be sent in any order, by reason for example. The group's offset of a partition is the first one that is
not done. Those done behind it are ranges in the text beside the offset. Decoding errors are reported at least once, so
several dead letters may be of the same record; it is sent once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.errors import CommandError, ErrorCode, KafkaError
from moldau.pipelines.engine.queries import Settings, source_values
from moldau.pipelines.model.common_options import DEAD_LETTERS
from moldau.pipelines.model.pipeline import Pipeline
from moldau.spark.connections import ask_patiently, borrowed
from moldau.spark.options import DEAD_LETTER_BYTES_MAX, HEADER_PREFIX, Options
from moldau.wire.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from moldau.spark.sink.transactions import Offset, Transaction, Transactions
    from moldau.spark.source.planning import TopicOffsets

Offsets = Mapping[TopicPartition, int]

REDRIVEN_MAX = 50_000  # in one transaction, which is in memory
_NEW_MAX = 10_000  # letters of a partition that are looked at at a time
_COLUMNS = ("offset", "key", "value", "timestamp", "headers")
_METADATA_MAX = 4_000  # what brokers keep beside an offset (offset.metadata.max.bytes is 4096)
_TIMEOUT_MS = 60_000
_FENCED = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.CONCURRENT_TRANSACTIONS)
_OURS = (HEADER_PREFIX, "moldau.")


class Letter(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: Any
    headers: list[dict[str, Any]]  # all of them
    is_done: bool = False  # sent back already

    @property
    def place(self) -> str:
        return f"{self.partition}:{self.offset}"

    @property
    def facts(self) -> dict[str, str]:
        """What headers of dead letters say; the last ones, since the record may have such headers of its own."""
        texts = {one["key"]: (one["value"] or b"").decode("utf-8", "replace") for one in self.headers}
        return {name: text for name, text in texts.items() if name.startswith(_OURS)}

    @property
    def reason(self) -> str:
        return self.facts.get(f"{HEADER_PREFIX}exception.message", "")

    @property
    def origin(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the record; None for a row of a step."""
        found = [self.facts.get(HEADER_PREFIX + name) for name in ("topic", "partition", "offset")]
        topic, partition, offset = found
        return (topic, int(partition), int(offset)) if topic and partition and offset else None

    @property
    def is_of_file(self) -> bool:
        """A line of a file; no topic has a name with a slash."""
        return self.origin is not None and "/" in self.origin[0]

    @property
    def origin_name(self) -> str:
        return self.origin[0] if self.origin else f"view {self.facts.get('moldau.view', '?')}"

    @property
    def own_headers(self) -> list[dict[str, Any]]:
        """The record's, without those that were added behind them."""
        count = len(self.headers)
        while count and self.headers[count - 1]["key"].startswith(_OURS):
            count -= 1
        return self.headers[:count]


@dataclass
class Done:
    """Which dead letters of a partition are done."""

    position: int = 0  # all before it
    ranges: list[tuple[int, int]] = field(default_factory=list)  # first and last offsets behind it

    @classmethod
    def of(cls, offset: Offset | None) -> Done:
        if offset is None:
            return cls()
        return cls(offset.offset, [(first, last) for first, last in json.loads(offset.metadata or "[]")])

    def __contains__(self, offset: int) -> bool:
        return offset < self.position or any(first <= offset <= last for first, last in self.ranges)

    @classmethod
    def after(cls, offsets: Sequence[int], done: Callable[[int], bool], end: int) -> Done:
        """Of all dead letters of a partition up to `end`, in order."""
        runs: list[tuple[int, int]] = []
        is_open = False
        for offset in offsets:
            if done(offset):
                runs = [*runs[:-1], (runs[-1][0], offset)] if is_open else [*runs, (offset, offset)]
            is_open = done(offset)
        first_open = next((offset for offset in offsets if not done(offset)), end)
        return cls(first_open, [run for run in runs if run[0] > first_open])


@dataclass(frozen=True)
class Redriven:
    sent: int
    repeated: int  # dead letters of records that were sent already
    without_topic: int  # rows of steps, which have no topic to go back to
    of_files: int  # lines of files, which have none, either
    left: int  # chosen, but more than one transaction takes


class DeadLetterTopic:
    def __init__(self, pipeline: Pipeline, kafka: Mapping[str, str]) -> None:
        topic = Settings.of(pipeline).dead_letters
        if topic is None:
            raise CommandError(f"pipeline {pipeline.name} has no dead letters: its settings have no `{DEAD_LETTERS}`")
        self.topic = topic
        self._pipeline = pipeline.name
        self._kafka = {"kafka.bootstrap.servers": "localhost:9092", **kafka}
        self._group = f"{pipeline.name}.redrive"
        self._seen: Offsets | None = None  # where `new_letters` was

    def letters(self) -> list[Letter]:
        """All of this pipeline that are in the topic."""
        from moldau.spark.sink.transactions import Transactions

        self._reach()
        with borrowed(Options(self._kafka).client_config("moldau-pipelines")) as cluster:
            done = self._done(Transactions(cluster))
        return list(self._read(done)[0])

    def redrive(self, chosen: Callable[[Letter], bool], to: str | None = None, limit: int = REDRIVEN_MAX) -> Redriven:
        """Send records back to their topics, or to the topic `to`."""
        from moldau.spark.sink.row_sink import send_in_transaction
        from moldau.spark.sink.transactions import Transactions
        from moldau.spark.sink.write_options import WriteOptions

        self._reach()
        options = WriteOptions.parse({"kafka.max.request.size": str(DEAD_LETTER_BYTES_MAX), **self._kafka})
        with self._not_fenced(), borrowed(options.client) as cluster:
            transactions = Transactions(cluster)
            transaction = transactions.begin(self._group, _TIMEOUT_MS)
            try:
                letters, ends = self._read(self._done(transactions))
                picked, result, also_done = _pick(letters, chosen, to, min(limit, REDRIVEN_MAX))
                if not also_done:
                    return result
                if picked:
                    send_in_transaction(options, transactions, transaction, iter([_records(picked, to)]))
                self._write_done(transactions, transaction, letters, also_done, ends)
            except BaseException:
                transactions.end([transaction], commit=False)
                raise
            for error in transactions.end([transaction], commit=True).values():
                raise error
        return result

    def _reach(self) -> None:
        """Raise a KafkaError soon if no broker answers. Coordinators are asked again for a minute."""
        ask_patiently(Options(self._kafka).client_config("moldau-pipelines"), lambda cluster: cluster.metadata([]))

    @contextmanager
    def _not_fenced(self) -> Iterator[None]:
        try:
            yield
        except KafkaError as error:
            if error.code not in _FENCED:
                raise
            raise CommandError(
                f"another redrive of pipeline {self._pipeline} began meanwhile: this one has sent nothing"
            ) from error

    def _done(self, transactions: Transactions) -> dict[int, Done]:
        offsets = transactions.read_offsets(self._group)
        return {index: Done.of(offset) for (topic, index), offset in offsets.items() if topic == self.topic}

    def _read(self, done: Mapping[int, Done]) -> tuple[list[Letter], dict[int, int]]:
        """The letters, and where each partition ends."""
        ends = self._offsets.ends_now()
        letters = [
            one._replace(is_done=one.offset in done.get(one.partition, Done()))
            for one in self._between(self._offsets.earliest(ends), ends)
        ]
        return letters, {tp.partition: end for tp, end in ends.items()}

    def new_letters(self) -> list[Letter]:
        """Since the last call, without keys and values. None are new at the first call."""
        ends = self._offsets.ends_now()
        starts = dict(ends) if self._seen is None else {tp: self._seen.get(tp, 0) for tp in ends}
        upto = {tp: min(end, starts[tp] + _NEW_MAX) for tp, end in ends.items()}
        letters = self._between(starts, upto, ("offset", "headers"))
        self._seen = {**(self._seen or {}), **upto}
        return letters

    @cached_property
    def _offsets(self) -> TopicOffsets:
        from moldau.spark.source.planning import TopicOffsets
        from moldau.spark.source.read_options import ReadOptions

        return TopicOffsets(ReadOptions.for_batch(Options({**self._kafka, "subscribe": self.topic})))

    def _between(self, starts: Offsets, ends: Offsets, columns: tuple[str, ...] = _COLUMNS) -> list[Letter]:
        """Those of this pipeline."""
        from moldau.spark.source.fetching import read_range
        from moldau.spark.source.read_plan import OffsetRange, ReadPlan

        plan = ReadPlan(Options(self._kafka).client_config("moldau-pipelines"), columns, fail_on_data_loss=False)
        letters = [
            Letter(tp.partition, *row)
            for tp, end in sorted(ends.items())
            for batch in read_range(plan, OffsetRange(*tp, starts.get(tp, end), end))
            for row in _rows(batch)
        ]
        return [one for one in letters if one.facts.get("moldau.pipeline", self._pipeline) == self._pipeline]

    def _write_done(
        self,
        transactions: Transactions,
        transaction: Transaction,
        letters: Sequence[Letter],
        now_done: set[str],
        ends: Mapping[int, int],
    ) -> None:
        from moldau.spark.sink.transactions import Offset

        offsets: dict[TopicPartition, Offset] = {}
        for index, end in ends.items():
            own = {one.offset: one.is_done or one.place in now_done for one in letters if one.partition == index}
            after = Done.after(sorted(own), own.__getitem__, end)
            text = json.dumps(after.ranges, separators=(",", ":"))
            if len(text) > _METADATA_MAX:
                raise CommandError(
                    f"too many dead letters of {self.topic}-{index} would be done with gaps between: nothing was sent."
                    " Redrive those before them first, without filters"
                )
            offsets[TopicPartition(self.topic, index)] = Offset(after.position, text)
        transactions.write_offsets(transaction, self._group, offsets)


def dead_letter_topics(pipeline: Pipeline, more: Mapping[str, str] = MappingProxyType({})) -> list[DeadLetterTopic]:
    """One for each cluster: dead letters of a topic are in the topic's cluster. `more` are properties of clients."""
    settings = Settings.of(pipeline)
    clients = [settings.kafka]
    for source in pipeline.sources:
        own = source_values(pipeline, source) if source.connector == "topic" else {}
        client = settings.kafka | {name: str(value) for name, value in own.items() if name.startswith("kafka.")}
        clients += [client] if client not in clients else []
    return [DeadLetterTopic(pipeline, {**client, **more}) for client in clients]


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    for row in batch.to_pylist():
        yield row["offset"], row.get("key"), row.get("value"), row.get("timestamp"), row["headers"] or []


def _pick(
    letters: Sequence[Letter], chosen: Callable[[Letter], bool], to: str | None, limit: int
) -> tuple[list[Letter], Redriven, set[str]]:
    """What to send, and the places of all that are done then."""
    origins = {one.origin for one in letters if one.is_done and one.origin}
    picked: list[Letter] = []
    now_done: set[str] = set()
    repeated = without_topic = of_files = left = 0
    for letter in letters:
        if letter.is_done or not chosen(letter):
            continue
        if letter.origin in origins:
            now_done.add(letter.place)
            repeated += 1
        elif letter.origin is None and to is None:
            without_topic += 1
        elif letter.is_of_file and to is None:
            of_files += 1
        elif len(picked) >= limit:
            left += 1
        else:
            picked.append(letter)
            now_done.add(letter.place)
            origins |= {letter.origin} if letter.origin else set()
    return picked, Redriven(len(picked), repeated, without_topic, of_files, left), now_done


def _records(letters: Sequence[Letter], to: str | None) -> pa.RecordBatch:
    """As they were; in their topic, in their partition."""
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.record_batch(
        {
            "topic": pa.array([to or (one.origin or ("",))[0] for one in letters], pa.string()),
            "partition": pa.array([one.origin[1] if one.origin and not to else None for one in letters], pa.int32()),
            "key": pa.array([one.key for one in letters], pa.binary()),
            "value": pa.array([one.value for one in letters], pa.binary()),
            "timestamp": pa.array([one.timestamp for one in letters], pa.timestamp("us", "UTC")),
            "headers": pa.array([one.own_headers for one in letters], headers),
        }
    )
