"""Start a stopped query from elsewhere: with a new checkpoint, and the old one kept aside.

A new checkpoint is a new query to Spark and to sinks: its state is empty, and what it writes is not compared with what
the old one wrote. Records between the new start and the old positions are therefore written again; with `committed`
there are none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from moldau.clocks import wall_clock_ms
from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.checkpoints.changes import other_sources
from moldau.pipelines.engine.checkpoints.checkpoint import FILE, Checkpoint, MoldauFile
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.checkpoints.identity import Identity
from moldau.pipelines.engine.checkpoints.sharing import record_sinks
from moldau.pipelines.engine.checkpoints.state_rows import state_rows
from moldau.pipelines.engine.queries import QueryPlan, Settings
from moldau.pipelines.engine.session import silence

COMMITTED, EARLIEST, LATEST = "committed", "earliest", "latest"


@dataclass(frozen=True)
class Reset:
    """What a reset of one query does."""

    plan: QueryPlan
    location: str
    aside: str | None  # where the old checkpoint goes; None: there is none
    start: Mapping[str, str]  # by source; those that are not here start where their options say
    is_unfinished: bool  # the last batch was not finished: some of its rows may be written already
    has_state: bool

    def apply(self) -> None:
        folder = open_folder(self.location)
        if self.aside is not None:
            folder.move_to(self.aside)
        if self.plan.is_shared or self.plan.mode != "append":
            # Else another query of the same view might take these sinks, and they would start where that one is.
            record_sinks(self.location, self.plan.sinks)
        open_folder(self.location).write(FILE, MoldauFile(start=self.start).to_text())

    def state_rows(self) -> int | None:
        """How many rows of state are dropped. None if that cannot be told. Starts Spark if there are any."""
        if not self.has_state:
            return 0
        from moldau.spark import session

        spark = session(short_job=True)
        silence(spark)  # state that cannot be read is no error here
        return state_rows(spark, self.location)


def plan_reset(plan: QueryPlan, settings: Settings, to: str) -> Reset:
    """`to` is earliest, latest, committed, or offsets as JSON, as in `startingOffsets`."""
    checkpoint = Checkpoint(plan, settings)
    last = checkpoint.log.last_batch
    if to == COMMITTED and last is None:
        raise ConfigError(f"query {plan.name} has no checkpoint in {checkpoint.location}, so it has no offsets to keep")
    if to == COMMITTED and checkpoint.file.identity is not None:
        now = Identity.of(plan, (), checkpoint.file.salt)
        for other in other_sources(checkpoint.file.identity, now):
            raise ConfigError(f"{other}: committed offsets are not valid there: use --to earliest or --to latest")
    starts: dict[str, str] = {}
    for source in plan.sources:
        start = last.positions.get(source.name) if to == COMMITTED and last is not None else to
        if start is None or (start == EARLIEST and not _can_start_at(plan, source.connector)):
            continue  # new since then, or it starts with its first record anyway
        if not _can_start_at(plan, source.connector):
            raise ConfigError(
                f"source {source.name} (connector {source.connector}) cannot start at given offsets: use --to earliest"
            )
        starts[source.name] = connector(source.connector, plan.pipeline.folder).start_at(start)
    if to not in (COMMITTED, EARLIEST, LATEST):
        starts = _given(to, starts)
    when = datetime.fromtimestamp(wall_clock_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = f"{checkpoint.location}.{when}" if open_folder(checkpoint.location).names() else None
    is_unfinished = last is not None and not last.is_finished
    return Reset(plan, checkpoint.location, aside, starts, is_unfinished, checkpoint.log.has_state)


def _given(text: str, starts: Mapping[str, str]) -> dict[str, str]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(
            f"--to {text}: expected earliest, latest, committed, or offsets as JSON, such as "
            '{"clicks": {"0": 100}}; with several sources, {"source": {"clicks": {"0": 100}}}'
        ) from error
    if isinstance(value, dict) and value.keys() <= starts.keys() and _is_nested(value):
        return {name: json.dumps(offsets) for name, offsets in value.items()}
    if len(starts) > 1:
        names = ", ".join(starts)
        raise ConfigError(f"--to {text}: there are several sources ({names}): give offsets by the name of the source")
    return dict.fromkeys(starts, text)


def _is_nested(value: Mapping[str, object]) -> bool:
    """{"source": {"topic": {"0": 1}}}, not {"topic": {"0": 1}}."""
    inner = [part for offsets in value.values() if isinstance(offsets, dict) for part in offsets.values()]
    return bool(inner) and all(isinstance(part, dict) for part in inner)


def _can_start_at(plan: QueryPlan, name: str) -> bool:
    return connector(name, plan.pipeline.folder).can_start_at
