"""Runs what the config topic asks for, on the active worker: one thread compares and acts, see `life`."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moldau.clocks import monotonic_ms, wall_clock_ms
from moldau.errors import MoldauError
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.reasons import reason_of
from moldau.pipelines.engine.run import Run
from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source
from moldau.pipelines.model.references import hidden
from moldau.pipelines.worker.checkpoint_copies import CheckpointCopies, restore
from moldau.pipelines.worker.herder import Topics
from moldau.pipelines.worker.life import Action, Stage, Teller, next_action
from moldau.pipelines.worker.records import (
    Definition,
    Kind,
    Record,
    Target,
    Topic,
    removal_records,
    status_record,
    task_records,
    topic_record,
)
from moldau.pipelines.worker.state_topics import FencedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_RETRY_MS_MAX = 60_000  # a definition that cannot be built now may be later: a secret is missing, a server is down
_END_S = 60.0  # longest wait for a micro-batch when the worker ends
_LOG_LINES = 500  # of each connector, for `logs`

Build = Callable[[Definition, str], Pipeline]
"""A definition as a pipeline with its checkpoints in this folder. Raises MoldauError."""


class Engine(NamedTuple):
    """What a runner works with."""

    spark: Callable[[], SparkSession]
    build: Build
    checkpoint_folder: str | None  # that all workers share
    start: Callable[..., Run] = Run


@dataclass
class _Running:
    definition: Definition
    run: Run | None = None
    error: str | None = None  # why it did not become a run
    failures: int = 0
    retry_ms: int = 0
    is_outdated: bool = False
    is_ending: bool = False

    @property
    def queries(self) -> tuple[RunningQuery, ...]:
        return self.run.queries if self.run is not None else ()

    @property
    def has_ended(self) -> bool:
        return self.run is None or self.run.wait(0)

    @property
    def stage(self) -> Stage:
        if self.run is None:
            return Stage.ABSENT
        if self.is_ending:
            return Stage.ENDING
        if self.is_outdated:
            return Stage.OUTDATED
        return Stage.ENDED if self.has_ended else Stage.CURRENT


@dataclass
class _Log(Listener):
    """What happened to a connector, for people."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LOG_LINES))

    def add(self, text: str) -> None:
        now = datetime.fromtimestamp(wall_clock_ms() / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
        self.lines.append(f"{now} {hidden(text)}")

    def changed(self, query: RunningQuery) -> None:
        self.add(f"{query}: {query.state}{': ' + query.reason if query.reason else ''}")


class Runner:
    """Alive while this worker is active. `fenced` is called once if another worker has become that."""

    def __init__(
        self, topics: Topics, engine: Engine, worker_id: str, fenced: Callable[[], None] = lambda: None
    ) -> None:
        self._topics = topics
        self._engine = engine
        with topics.lock:
            generations = [status.generation for status in topics.state.statuses.values()]
        self._teller = Teller(worker_id, max(generations, default=0) + 1)
        self._fenced = fenced
        self._running: dict[str, _Running] = {}
        self._logs: dict[str, _Log] = {}
        self._wake = threading.Event()
        self._is_over = threading.Event()
        self._scratch = Path(tempfile.mkdtemp(prefix="moldau-worker-"))
        self._thread = threading.Thread(target=self._loop, name="moldau-worker-runner", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, *, now: bool) -> None:
        """End all queries, at once or after their micro-batches."""
        self._is_over.set()
        self._wake.set()
        self._stop_all(now=now)
        if self._thread.is_alive():
            self._thread.join()
        self._stop_all(now=now)  # what it has started meanwhile
        for name, running in self._running.items():
            if running.run is not None and not running.run.wait(_END_S):
                logger.warning("the queries of %s do not end", name)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _stop_all(self, *, now: bool) -> None:
        for running in tuple(self._running.values()):
            if running.run is not None:
                running.run.stop(now=now)

    def restart(self, name: str, *, only_failed: bool = False) -> None:
        """End it after its micro-batches, and start it again."""
        running = self._running.get(name)
        if running is None:
            return
        has_failed = running.error is not None or any(query.state is State.FAILED for query in running.queries)
        if has_failed or not only_failed:
            running.is_outdated, running.retry_ms = True, 0
            self.wake()

    def is_idle(self, name: str) -> bool:
        """Whether none of its queries runs."""
        running = self._running.get(name)
        return running is None or running.run is None

    def forget_checkpoint(self, name: str) -> None:
        """A shared folder is kept under another name."""
        if self._engine.checkpoint_folder is None:
            shutil.rmtree(self._scratch / name, ignore_errors=True)
            return
        folder = open_folder(f"{self.folder()}/{name}", self._engine.spark())
        if folder.names():
            folder.move_to(f"{folder.location}.{wall_clock_ms()}")

    def log(self, name: str) -> Sequence[str]:
        return tuple(self._logs[name].lines) if name in self._logs else ()

    def folder(self) -> str:
        return self._engine.checkpoint_folder or str(self._scratch)

    # What follows runs in the runner's thread.

    def _loop(self) -> None:
        while not self._is_over.is_set():
            self._wake.clear()
            try:
                self.look()
            except FencedError:
                self._fenced()
                return
            except Exception:
                logger.exception("cannot look after the connectors; trying again")
            self._wake.wait(_LOOK_S)

    def look(self) -> None:
        """Compare and act once. Called by the runner's thread, and by tests in place of it."""
        with self._topics.lock:
            definitions = dict(self._topics.state.definitions)
            targets = {name: self._topics.state.target(name) for name in definitions}
        for name in {*definitions, *self._running}:
            self._act(name, definitions.get(name), targets.get(name))
        self._tell(targets)

    def _act(self, name: str, definition: Definition | None, wanted: Target | None) -> None:
        running = self._running.get(name)
        if running is not None and definition is not None and running.definition != definition:
            running.is_outdated = True
        if running is not None and running.is_ending and running.has_ended:
            del self._running[name]
            running = None
        stage = Stage.ABSENT if running is None else running.stage
        action = next_action(wanted, stage)
        if action is Action.START and definition is not None:
            self._start(definition, running)
        elif action is Action.END and running is not None and running.run is not None:
            running.is_ending = True
            running.run.stop()
        elif action is Action.FORGET or (wanted is not Target.STARTED and stage is Stage.ABSENT):
            self._running.pop(name, None)

    def _start(self, definition: Definition, before: _Running | None) -> None:
        name, log = definition.name, self._logs.setdefault(definition.name, _Log())
        if before is not None and not before.is_outdated and monotonic_ms() < before.retry_ms:
            return
        running = _Running(definition, failures=before.failures if before and not before.is_outdated else 0)
        self._running[name] = running
        try:
            running.run = self._new_run(definition, log)
            running.run.start()
        except Exception as error:
            if not isinstance(error, MoldauError):
                logger.exception("internal error while starting %s (please report it)", name)
            running.error = hidden(reason_of(error))
            running.failures += 1
            running.retry_ms = monotonic_ms() + min(1_000 << min(running.failures, 10), _RETRY_MS_MAX)
            if before is None or before.error != running.error:
                log.add(f"{name}: FAILED: {running.error}")

    def _new_run(self, definition: Definition, log: _Log) -> Run:
        shared, name = self._engine.checkpoint_folder, definition.name
        with self._topics.lock:
            copies = dict(self._topics.state.checkpoints.get(name, {}))
        if shared is None and not (self._scratch / name).exists():
            restore(self._scratch / name, copies)
        for query in (query for query, copy in copies.items() if shared is not None and copy.get("files")):
            # Only offsets that were altered have files then: they begin a new checkpoint.
            folder = open_folder(f"{shared}/{name}/{query}", self._engine.spark())
            for file, text in copies[query]["files"].items() if not folder.names() else ():
                folder.write(file, text)
        pipeline = self._engine.build(definition, self.folder())
        copies_made = CheckpointCopies(self._record, is_shared=shared is not None)
        run = self._engine.start([pipeline], spark=self._engine.spark(), listeners=[log, copies_made])
        tasks = [{"task.class": "moldau.query", "query": query.name} for query in run.queries]
        now_ms = wall_clock_ms()
        used = [topic for topic in sorted(topics_of(definition, pipeline)) if not self._knows(name, topic)]
        try:
            self._topics.write([*task_records(name, tasks), *(topic_record(name, topic, now_ms) for topic in used)])
        except BaseException:
            run.start()  # only a started run gives its locks back when it is stopped
            run.stop(now=True)
            raise
        return run

    def _knows(self, name: str, topic: str) -> bool:
        with self._topics.lock:
            return topic in self._topics.state.topics.get(name, {})

    def _record(self, records: Sequence[Record]) -> None:
        """Of a micro-batch; called by Spark's threads."""
        try:
            self._topics.write(records, is_read=False)
        except FencedError:
            self._fenced()
            raise

    def _tell(self, targets: Mapping[str, Target]) -> None:
        """Write what has changed since the last look."""
        records: list[Record] = []
        with self._topics.lock:
            state = self._topics.state
            for name in state.statuses.keys() - state.definitions.keys():  # deleted while it was looked at
                gone = Definition(name, Kind.CONNECTOR, {})
                records += [each for each in removal_records(gone, state) if each.topic is Topic.STATUS]
            for name, wanted in targets.items():
                running = self._running.get(name)
                stage, error = (Stage.ABSENT, None) if running is None else (running.stage, running.error)
                status = self._teller.connector(wanted, stage, error)
                if state.statuses.get(name) != status:
                    records.append(status_record(name, status))
                known = state.task_statuses.get(name, {})
                tasks = self._teller.tasks(wanted, running.queries if running else (), len(state.tasks(name)))
                records += [status_record(name, tasks[n], n) for n in tasks if known.get(n) != tasks[n]]
                records += [status_record(name, None, n) for n in known if n not in tasks]
                records += task_records(name, []) if wanted is Target.STOPPED and state.tasks(name) else []
        if records:
            self._topics.write(records)


def topics_of(definition: Definition, pipeline: Pipeline) -> set[str]:
    """The topics that they name; patterns and topics of single records are not among them."""
    both: tuple[Source | Sink, ...] = (*pipeline.sources, *pipeline.sinks)
    parts = [part.options for part in both if part.connector == "topic"]
    given = [str(options[key].value) for options in parts for key in ("topic", "subscribe") if key in options]
    given += [definition.properties[key] for key in ("topic", "topics") if definition.properties.get(key)]
    return {name.strip() for text in given for name in text.split(",") if "${" not in text}
