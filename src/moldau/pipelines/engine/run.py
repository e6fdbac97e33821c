"""A run: pipelines in one Spark session from their start to their end. The commands and the Python API use this.

Here the parts of the engine are put together: who listens to the supervisor stands in `Run`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.engine.bad_records.narrowing import BadRecords
from moldau.pipelines.engine.clock import QuietSources
from moldau.pipelines.engine.queries import Settings, refuse_without_sinks
from moldau.pipelines.engine.session import session_for
from moldau.pipelines.engine.state_files import RunFile, StateFiles, overall, query_facts
from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State, Supervisor
from moldau.pipelines.engine.watching.observer import Observer
from moldau.pipelines.model.pipeline import Pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Run:
    """Several pipelines under supervision."""

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
        *,
        master: str | None = None,
        spark: SparkSession | None = None,
        listeners: Sequence[Listener] = (),
    ) -> None:
        """Locks the pipelines and gets a Spark session, `spark` or a new one, but starts no query."""
        for name, count in Counter(pipeline.name for pipeline in pipelines).items():
            if count > 1:
                raise ConfigError(f"{count} pipelines are named {name}: give each a name of its own")
        refuse_without_sinks(pipelines)
        settings = {pipeline.name: Settings.of(pipeline) for pipeline in pipelines}
        files = _lock_all(pipelines, settings)
        try:
            self.spark = spark or session_for(settings, master)
            self.supervisor = Supervisor(self.spark, pipelines, [BadRecords(), *listeners, QuietSources()])
        except BaseException:
            _close(files)
            raise
        self.observer = Observer()
        self.files = StateFiles(files, self.supervisor.stop, self.facts)
        for listener in (self.observer, self.files):
            self.supervisor.add_listener(listener)

    @property
    def queries(self) -> tuple[RunningQuery, ...]:
        return self.supervisor.queries

    @property
    def state(self) -> State:
        """The worst of the queries'."""
        return overall([query.state for query in self.queries])

    def facts(self, query: RunningQuery) -> dict[str, Any]:
        """What `status --json` says about a query."""
        return query_facts(query) | self.observer.facts(query)

    def start(self) -> None:
        self.supervisor.start()

    def stop(self, *, now: bool = False) -> None:
        self.supervisor.stop(now=now)

    def wait(self, timeout_s: float | None = None) -> bool:
        return self.supervisor.wait(timeout_s)


def _lock_all(pipelines: Sequence[Pipeline], settings: Mapping[str, Settings]) -> dict[str, RunFile]:
    files: dict[str, RunFile] = {}
    try:
        for pipeline in pipelines:
            files[pipeline.name] = RunFile(pipeline, settings[pipeline.name].checkpoint(pipeline))
    except BaseException:
        _close(files)
        raise
    return files


def _close(files: Mapping[str, RunFile]) -> None:
    for file in files.values():
        file.write(State.STOPPED, [])
        file.close()
