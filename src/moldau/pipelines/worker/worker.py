"""A worker process: one Spark session, the state topics, a place in the group, and the REST interface.

    standby ──elected──▶ active ──lost or fenced──▶ standby

A standby has its Spark session ready and follows the topics, so it takes over as soon as it is elected: it shuts the
last active worker out, restores checkpoints, and starts what should run. Changes of role are made by one thread, the
main one; other threads only ask for them.
"""

from __future__ import annotations

import logging
import queue
import signal
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.errors import CommandError, MoldauError
from moldau.pipelines.doors.connect.door import to_pipeline
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline
from moldau.pipelines.worker.config import WorkerConfig
from moldau.pipelines.worker.herder import Door, Herder
from moldau.pipelines.worker.membership import Membership
from moldau.pipelines.worker.pipeline_files import check_file
from moldau.pipelines.worker.plugin_answers import type_of
from moldau.pipelines.worker.records import Definition, Kind, active_record
from moldau.pipelines.worker.runner import Engine, Runner
from moldau.pipelines.worker.server import RestServer
from moldau.pipelines.worker.state_topics import FencedError, StateTopics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_RETRY_S = 3  # the group needs a moment to tell a worker that it was replaced
_JVM_POLL_S = 1.0
_CLIENT_PREFIXES = ("bootstrap.servers", "security.", "ssl.", "sasl.")


class _Event(Enum):
    ELECTED = auto()
    LOST = auto()
    FENCED = auto()
    STOP = auto()


class Worker:
    def __init__(self, config: WorkerConfig, master: str | None = None) -> None:
        """Binds the REST port, so that a second process on it fails before it does anything."""
        self._config = config
        self._master = master or "local[*]"
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._spark: SparkSession | None = None
        self._runner: Runner | None = None
        self._topics = StateTopics(config, self._wake)
        door = Door(type_of, self._validate, check_file)
        self._herder = Herder(self._topics, door)
        self._member = Membership(
            config, partial(self._events.put, _Event.ELECTED), partial(self._events.put, _Event.LOST)
        )
        self._server = RestServer(config, self._herder)
        self.url = self._herder.url = self._server.url

    def run(self) -> None:
        """Until `stop` is called. Raises CommandError if Spark's JVM has ended: this process cannot have another."""
        self._herder.cluster_id = self._topics.open()
        self._server.start()
        self._member.join()
        try:
            self._start_spark()
            while (event := self._next_event()) is not _Event.STOP:
                self._change(event)
        finally:
            self._become_standby(now=False)
            self._member.leave()
            self._server.stop()
            self._topics.close()
            if self._spark is not None:
                with suppress(Exception):  # the JVM may be gone
                    self._spark.stop()

    def stop(self) -> None:
        self._events.put(_Event.STOP)

    def _next_event(self) -> _Event:
        from moldau.pipelines.engine.internals import jvm_process

        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=_JVM_POLL_S)
            jvm = jvm_process(self._spark) if self._spark is not None else None
            if jvm is not None and jvm.poll() is not None:
                raise CommandError("Spark's JVM has ended, so this worker ends, too: start it again")

    def _wake(self) -> None:
        self._herder.is_ready = self._spark is not None and bool(self._herder.active_url)
        if self._runner is not None:
            self._runner.wake()

    def _start_spark(self) -> None:
        import moldau.spark
        from moldau.pipelines.engine.session import silence

        on_interrupt = signal.getsignal(signal.SIGINT)
        self._spark = moldau.spark.session(app_name=f"moldau worker {self._config.group_id}", master=self._master)
        signal.signal(signal.SIGINT, on_interrupt)  # in place of PySpark's handler, which cancels all jobs
        silence(self._spark)
        self._wake()

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise MoldauError("Spark is starting")
        return self._spark

    def _change(self, event: _Event) -> None:
        try:
            if event is _Event.ELECTED and self._member.is_owner:
                self._become_active()
                return
        except FencedError as error:
            logger.warning("%s", error)
            event = _Event.FENCED
        except MoldauError as error:
            logger.error("cannot become the active worker, trying again: %s", error)
            event = _Event.FENCED
        self._become_standby(now=True)
        if event is _Event.FENCED:  # if the group still says that it is this worker's turn, then it is
            timer = threading.Timer(_RETRY_S, self._events.put, [_Event.ELECTED])
            timer.daemon = True
            timer.start()

    def _become_active(self) -> None:
        if self._runner is not None:
            return
        self._topics.take_over()
        self._topics.write([active_record(self.url)])
        engine = Engine(self._session, self._build, self._config.checkpoint_folder)
        self._runner = Runner(
            self._topics, engine, self.url.partition("://")[2], partial(self._events.put, _Event.FENCED)
        )
        self._runner.start()
        self._herder.runner = self._runner
        logger.info("this worker is the active one of group %s", self._config.group_id)

    def _become_standby(self, *, now: bool) -> None:
        runner, self._runner, self._herder.runner = self._runner, None, None
        if runner is not None:
            runner.close(now=now)
            logger.info("this worker is a standby of group %s", self._config.group_id)
        self._topics.hand_over()

    def _validate(self, config: Mapping[str, str]) -> Mapping[str, object]:
        from moldau.pipelines.doors.connect.validation import validate

        return validate(config, self._config.properties)

    def _build(self, definition: Definition, folder: str) -> Pipeline:
        if definition.kind is Kind.CONNECTOR:
            return to_pipeline(
                definition.name, definition.properties, self._config.properties, folder, self._config.folder
            )
        return self._from_file(definition, folder)

    def _from_file(self, definition: Definition, folder: str) -> Pipeline:
        """With the worker's brokers, unless the file names some."""
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "pipeline.yaml"
            path.write_text(definition.properties["file"], "utf-8")
            pipeline = load_pipeline(path)
        brokers = {
            f"kafka.{name}": Given(value)
            for name, value in self._config.properties.items()
            if name.startswith(_CLIENT_PREFIXES)
        }
        settings = {**brokers, **pipeline.settings, "checkpoint": Given(folder)}
        return replace(pipeline, name=definition.name, settings=settings, folder=self._config.folder, file=None)
