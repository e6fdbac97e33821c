"""All examples of pipelines in one `moldau pipeline run`, killed at random moments and started again.

Their input (`soak.example_inputs`) is there from the start; sources read a few records at a time, so a run takes many
micro-batches. A kill (-9, of all its processes) comes when a random number of micro-batches has been committed, and a
random moment later. The last run reads all the rest and ends. In the same process each example runs once more, over
the same input and without a kill: what the two have written must be equal, row by row. Of outputs in mode `update`,
where the number of updates depends on the micro-batches, the last row of each key is compared.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from soak.broker_process import BrokerProcess
from soak.example_inputs import INPUTS, LAST, ROWS, Row
from soak.pipeline_process import kill_run, said, start_run

EXAMPLES = Path(__file__).parents[1] / "examples" / "pipelines"
PARTITIONS = 2
BATCH_RECORDS = 30
RUN_TIMEOUT_S = 600
KILL_DELAY_S_MAX = 0.5
CALM = "-calm"  # ends the names of pipelines and topics of the run that nobody kills
# Fields of the value that belong to the key of what is updated.
UPDATED: dict[str, tuple[str, ...]] = {"last-value": (), "website-activity": ("window_start",)}
# The clock of the generator is not that of its other run.
IGNORED: dict[str, tuple[str, ...]] = {"website-visitors": ("at",)}
# For a few rows it takes longer to compile code than to run it.
SPARK = {
    "spark.sql.shuffle.partitions": 2,
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
Written = Counter[tuple[Any, ...]]


@dataclass
class Outcome:
    kills: list[int] = field(default_factory=list)  # after so many committed micro-batches
    rows: int = 0
    elapsed_s: float = 0.0
    problems: list[str] = field(default_factory=list)


class Example:
    """One example as it is run here, with topics of its own."""

    def __init__(self, file: Path, folder: Path, bootstrap: str) -> None:
        self.model: dict[str, Any] = yaml.safe_load(file.read_text())
        self.name = str(self.model.get("name", file.stem))
        self._folder, self._bootstrap = folder, bootstrap

    def source_topics(self) -> Iterator[tuple[str, str, str | None]]:
        """Name of the source, its topic, and the column of its watermark."""
        for name, source in self.model["sources"].items():
            if source["connector"] == "topic":
                mark = source.get("watermark")
                yield name, self._topic(source["topic"]), mark.split()[0] if mark else None

    def outputs(self, end: str) -> list[str]:
        topics = [sink["topic"] for sink in self.model["sinks"].values() if sink["connector"] == "topic"]
        if letters := self.model["settings"].get("dead letters") if "settings" in self.model else None:
            topics.append(letters)
        return [self._topic(topic) + end for topic in topics]

    def write(self, folder: Path, *, end: str = "", batch_records: int | None = None) -> None:
        """Its file. Watermarks move with the rows alone, so that results do not depend on the clock."""
        model = copy.deepcopy(self.model)
        model.pop("tests", None)
        model["name"] = self.name + end
        for source in model["sources"].values():
            self._move(source, "")
            if "watermark" in source:
                column, delay = source["watermark"].split(" ", 1)
                source["watermark"] = {"column": column, "delay": delay, "idle": "never"}
            if source["connector"] == "generator":
                source |= {"rows per second": ROWS, "rows": 4 * ROWS}
            elif source["connector"] == "topic" and not source.get("static") and batch_records:
                source["maxOffsetsPerTrigger"] = batch_records
        for sink in model["sinks"].values():
            self._move(sink, end)
        settings = model.setdefault("settings", {})
        settings |= {"kafka.bootstrap.servers": self._bootstrap, "checkpoint": str(self._folder / "checkpoints")}
        settings["spark"] = SPARK | settings.get("spark", {})
        if "dead letters" in settings:
            settings["dead letters"] = self._topic(settings["dead letters"]) + end
        (folder / f"{self.name}{end}.yaml").write_text(yaml.safe_dump(model, sort_keys=False))

    def _move(self, part: dict[str, Any], end: str) -> None:
        if "topic" in part:
            part["topic"] = self._topic(part["topic"]) + end
        if "database" in part:
            part["database"] = str(self._folder / part["database"])
            part["table"] += end.replace("-", "_")

    def _topic(self, name: str) -> str:
        return f"{self.name}.{name}"


def run_examples(folder: Path, *, kills: int, seed: int, report: Callable[[str], None] = lambda _: None) -> Outcome:
    """On a broker of its own, which keeps records whose timestamps are old."""
    with BrokerProcess(folder / "broker", {"log.retention.ms": -1}, log_level="WARNING") as broker:
        return _run(folder, broker.bootstrap, kills, random.Random(seed), report)


def _run(folder: Path, bootstrap: str, kills: int, draw: random.Random, report: Callable[[str], None]) -> Outcome:
    started = time.monotonic()
    examples = [Example(file, folder, bootstrap) for file in sorted(EXAMPLES.rglob("*.yaml"))]
    outcome = Outcome()
    _write_files(examples, folder)
    _fill(examples, bootstrap, draw)
    _fill_database(folder)
    report(f"{len(examples)} examples have their input")
    # Not near the end, where all has been read and the number would never come.
    batches = sum(len(list(example.source_topics())) for example in examples) * ROWS // BATCH_RECORDS
    for target in sorted(draw.randrange(batches * 3 // 4) for _ in range(kills)):
        outcome.kills.append(_run_and_kill(folder, target, draw))
        report(f"killed after {outcome.kills[-1]} micro-batches")
    _send(bootstrap, ((topic, {mark: LAST}) for _, _, topic, mark in _sources(examples) if mark))
    process = start_run(folder, "last", "--available-now")
    try:
        code = process.wait(RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        kill_run(process)
    if code != 0:
        outcome.problems.append(f"the last run ended with code {code}: {said(folder)}")
        return outcome
    for example in examples:
        outcome.rows += _compare(example, folder, bootstrap, outcome.problems)
    outcome.elapsed_s = time.monotonic() - started
    return outcome


def _run_and_kill(folder: Path, target: int, draw: random.Random) -> int:
    process = start_run(folder, "killed")
    deadline = time.monotonic() + RUN_TIMEOUT_S
    try:
        while _committed(folder) < target:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{_committed(folder)} of {target} micro-batches, then no more: {said(folder)}")
            time.sleep(0.02)
        time.sleep(draw.uniform(0, KILL_DELAY_S_MAX))
    finally:
        kill_run(process)
    return _committed(folder)


def _committed(folder: Path) -> int:
    return sum(1 for _ in (folder / "checkpoints").glob("*/*/commits/[0-9]*"))


def _write_files(examples: list[Example], folder: Path) -> None:
    for name in ("killed", "last"):
        (folder / name).mkdir()
        for module in EXAMPLES.rglob("*.py"):
            shutil.copy(module, folder / name)
    for example in examples:
        example.write(folder / "killed", batch_records=BATCH_RECORDS)
        example.write(folder / "last")
        example.write(folder / "last", end=CALM)


def _sources(examples: list[Example]) -> Iterator[tuple[Example, str, str, str | None]]:
    return ((example, *source) for example in examples for source in example.source_topics())


def _fill(examples: list[Example], bootstrap: str, draw: random.Random) -> None:
    sources = list(_sources(examples))
    # Dead letters have no topic of their own until there is one; sinks create theirs.
    topics = [topic for _, _, topic, _ in sources]
    topics += [topic for each in examples for end in ("", CALM) for topic in each.outputs(end) if "dead" in topic]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, PARTITIONS) for topic in topics]).values():
        made.result()
    _send(bootstrap, ((topic, row) for each, name, topic, _ in sources for row in INPUTS[each.name, name](draw)))


def _send(bootstrap: str, rows: Iterator[tuple[str, Row]]) -> None:
    """The rows of a topic go to its partitions in turns."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    count: Counter[str] = Counter()
    for topic, row in rows:
        value = row if isinstance(row, str) else json.dumps(row)
        producer.produce(topic, value.encode(), partition=count[topic] % PARTITIONS)
        count[topic] += 1
    if producer.flush(60):
        raise RuntimeError("the input was not written")


def _fill_database(folder: Path) -> None:
    with sqlite3.connect(folder / "shop.db") as database:
        for table in ("orders", f"orders{CALM}".replace("-", "_"), "large_orders", "large_orders_calm"):
            database.execute(f"CREATE TABLE {table} (id INT, total DOUBLE)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", ((number, number) for number in range(ROWS)))


def _compare(example: Example, folder: Path, bootstrap: str, problems: list[str]) -> int:
    """The number of rows that were compared."""
    pairs: list[tuple[str, Written, Written]] = []
    for killed, calm in zip(example.outputs(""), example.outputs(CALM), strict=True):
        pairs.append((killed, _read(example, bootstrap, killed), _read(example, bootstrap, calm)))
    if not pairs:
        pairs.append(("large_orders", _table(folder, "large_orders"), _table(folder, "large_orders_calm")))
    for name, found, due in pairs:
        if not due:
            problems.append(f"{name}: the run without kills has written nothing")
        for what, rows in (("too few", due - found), ("too many", found - due)):
            if rows:
                problems.append(f"{name}: {rows.total()} of {due.total()} rows {what}, such as {next(iter(rows))}")
    return sum(due.total() for _, _, due in pairs)


def _table(folder: Path, table: str) -> Written:
    with sqlite3.connect(folder / "shop.db") as database:
        return Counter(database.execute(f"SELECT * FROM {table}").fetchall())


def _read(example: Example, bootstrap: str, topic: str) -> Written:
    """All committed records: partition (if there is a key, which decides it), key and value."""
    updated = UPDATED.get(example.name)
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    written: Written = Counter()
    for partition, key, value in _records(bootstrap, topic):
        fields = _fields(value)
        if isinstance(fields, Mapping):
            fields = {name: field for name, field in fields.items() if name not in IGNORED.get(example.name, ())}
        row = (partition if key is not None else None, key, json.dumps(fields, sort_keys=True))
        if updated is None:
            written[row] += 1
        else:
            last[key, *(fields[name] for name in updated)] = row
    return written if updated is None else Counter(last.values())


def _fields(value: bytes | None) -> Any:
    try:
        return None if value is None else json.loads(value)
    except ValueError:
        return value.decode() if value is not None else None


def _records(bootstrap: str, topic: str) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "soak",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        partitions = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        while partitions:
            message = consumer.poll(30)
            if message is None:
                raise RuntimeError(f"{topic} is not read to its end")
            error, partition = message.error(), message.partition() or 0
            if error is None:
                yield partition, _bytes(message.key()), _bytes(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                partitions.discard(partition)
            else:
                raise RuntimeError(str(error))
    finally:
        consumer.close()


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
