"""A worker process: one Spark session, the state topics, a place in the group, and the REST interface.

    standby ──elected──▶ active ──lost, fenced──▶ standby

A standby has its Spark session ready and follows the topics, so it takes over as soon as it is elected: it shuts the
last active worker out, restores checkpoints, and starts what should run. Changes of role are made by one thread, the
main one; other threads only ask for them.
"""

from __future__ import annotations

import logging
import queue
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.errors import MoldauError
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

_CLIENT_PREFIXES = ("bootstrap.servers", "security.", "ssl.", "sasl.")


class _Event(Enum):
    ELECTED = auto()
    LOST = auto()
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
        self._server = RestServer(config, self._herder)
        self.url = self._herder.url = self._server.url

    def run(self) -> None:
        """Until `stop` is called."""
        cluster_id = self._topics.open()
        self._herder.cluster_id = cluster_id
        self._server.start()
        member = Membership(self._config, partial(self._events.put, _Event.ELECTED), self._ask_to_yield)
        member.join()
        try:
            self._start_spark()
            while (event := self._events.get()) is not _Event.STOP:
                self._change(event)
        finally:
            self._become_standby(now=False)
            member.leave()
            self._server.stop()
            self._topics.close()
            if self._spark is not None:
                self._spark.stop()

    def stop(self) -> None:
        self._events.put(_Event.STOP)

    def _ask_to_yield(self) -> None:
        self._events.put(_Event.LOST)

    def _wake(self) -> None:
        self._herder.is_ready = bool(self._herder.active_url)
        if self._runner is not None:
            self._runner.wake()

    def _start_spark(self) -> None:
        import moldau.spark
        from moldau.pipelines.engine.session import silence

        self._spark = moldau.spark.session(
            app_name=f"moldau worker {self._config.group_id}", master=self._master or "local[*]"
        )
        silence(self._spark)

    def _session(self) -> SparkSession:
        if self._spark is None:
            raise MoldauError("Spark is starting")
        return self._spark

    def _change(self, event: _Event) -> None:
        if event is _Event.LOST:
            self._become_standby(now=True)
            return
        try:
            self._become_active()
        except FencedError:
            self._become_standby(now=True)
        except MoldauError as error:
            logger.error("cannot become the active worker (%s); trying again", error)
            self._become_standby(now=True)
            threading.Timer(1, self._events.put, [_Event.ELECTED]).start()

    def _become_active(self) -> None:
        if self._runner is not None:
            return
        self._topics.take_over()
        self._topics.write([active_record(self.url)])
        engine = Engine(self._session, self._build, self._config.checkpoint_folder)
        self._runner = Runner(self._topics, engine, self.url.partition("://")[2], self._ask_to_yield)
        self._runner.start()
        self._herder.runner, self._herder.is_ready = self._runner, True
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
