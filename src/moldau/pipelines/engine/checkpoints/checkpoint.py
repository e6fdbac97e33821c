"""The checkpoint of a query with `moldau.json` beside it: what the query was, and where `reset` wants it to start.

{"version": 1,
 "salt": "9f…",              of the hashes in it
 "identity": {…},            see `identity`
 "new sinks": {"out": 8},    sinks that joined or changed: the first batch they get
 "start": {"clicks": "…"}}   of `reset`: where sources start, until the first batch is planned
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from moldau.errors import ConfigError
from moldau.pipelines.engine.checkpoints.changes import Change, Verdict, changes
from moldau.pipelines.engine.checkpoints.checkpoint_log import CheckpointLog
from moldau.pipelines.engine.checkpoints.folders import checkpoints_in, open_folder
from moldau.pipelines.engine.checkpoints.identity import Identity, stateful_operators

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from moldau.pipelines.engine.queries import QueryPlan, Settings

logger = logging.getLogger(__name__)

FILE = "moldau.json"
_VERSION = 1


@dataclass(frozen=True)
class MoldauFile:
    """What `moldau.json` holds."""

    identity: Identity | None = None
    new_sinks: Mapping[str, int] | None = None
    start: Mapping[str, str] | None = None
    salt: str = ""

    @classmethod
    def parse(cls, text: str | None, where: str) -> MoldauFile:
        if text is None:
            return cls()
        try:
            value = json.loads(text)
            if value["version"] > _VERSION:
                raise ConfigError(f"{where} was written by a newer moldau (version {value['version']}): use that one")
            identity = value.get("identity")
            known = Identity.from_json(identity) if identity else None
            return cls(known, value.get("new sinks"), value.get("start"), value.get("salt", ""))
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{where} is damaged ({error}): delete it, and the checkpoint is used unchecked"
            ) from error

    def to_text(self) -> str:
        value: dict[str, Any] = {"version": _VERSION}
        value |= {"salt": self.salt} if self.salt else {}
        value |= {"identity": self.identity.to_json()} if self.identity else {}
        value |= {"new sinks": dict(self.new_sinks)} if self.new_sinks else {}
        value |= {"start": dict(self.start)} if self.start else {}
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


class NamesInUse(NamedTuple):
    """Of checkpoints that are not left over."""

    pipelines: Collection[str]
    queries: Collection[str]  # of the pipeline


class Checkpoint:
    """The checkpoint of one query, as it is before a start."""

    def __init__(self, plan: QueryPlan, settings: Settings, spark: SparkSession | None = None) -> None:
        self.plan = plan
        self.location = settings.checkpoint(plan.pipeline, plan.name)
        self._wanted = {name: str(value) for name, value in settings.spark.items()}
        self._folder = open_folder(self.location, spark)
        self.log = CheckpointLog(self._folder)
        self.file = MoldauFile.parse(self._folder.read(FILE), f"{self.location}/{FILE}")

    @property
    def starts(self) -> Mapping[str, str]:
        """Where sources start instead of where their options say: what `reset` asked for."""
        return (self.file.start or {}) if self.log.last_batch is None else {}

    def identity(self, frame: DataFrame) -> Identity:
        """What the query is now, to compare with what it was."""
        return Identity.of(self.plan, stateful_operators(frame), self.file.salt)

    def changes(self, new: Identity) -> tuple[Change, ...]:
        """Since the last start; none if the query has not run yet."""
        last = self.log.last_batch
        if last is None or self.file.identity is None:
            return ()
        wanted = self._wanted if new.operators else {}
        pipeline = self.plan.pipeline
        file = pipeline.file or "FILE"
        return changes(self.file.identity, new, pipeline.folder, last.conf, wanted, file=file)

    def admit(self, frame: DataFrame) -> frozenset[str]:
        """Before a start: refuse it or write down what the query is now. Returns the sinks that have not written yet.

        Raises ConfigError if the checkpoint cannot be used.
        """
        new = self.identity(frame)
        found = self.changes(new)
        refused = [change for change in found if change.verdict is Verdict.REFUSED]
        if refused:
            raise ConfigError(_refusal(refused))
        for change in found:
            logger.warning("query %s.%s: %s", new.pipeline, new.query, change.text)
        new_sinks = self._new_sinks(new)
        salt = self.file.salt or secrets.token_hex(16)
        is_salted = salt == self.file.salt
        file = MoldauFile(
            new if is_salted else Identity.of(self.plan, new.operators, salt), new_sinks, self.starts, salt
        )
        if file != self.file:
            self._folder.write(FILE, file.to_text())
        return frozenset(new_sinks)

    def _new_sinks(self, new: Identity) -> dict[str, int]:
        """A sink of a query that has written before has no record of earlier batches until it has written one."""
        last, old = self.log.last_batch, self.file.identity
        if last is None or old is None:
            return {}
        next_batch = last.batch_id + last.is_finished
        known = {name: batch for name, batch in (self.file.new_sinks or {}).items() if batch >= next_batch}
        changed = {
            name: next_batch for name, part in new.sinks.items() if old.sinks.get(name) != part or old.mode != new.mode
        }
        return {**changed, **{name: batch for name, batch in known.items() if name in new.sinks}}


def _refusal(refused: Sequence[Change]) -> str:
    what = "; ".join(change.text for change in refused)
    ways = "; or ".join(dict.fromkeys(way for change in refused for way in change.ways_out))
    return f"the checkpoint does not fit the pipeline any more: {what}. You can undo the change, or: {ways}"


def left_behind(
    new: Identity, plan: QueryPlan, settings: Settings, in_use: NamesInUse, spark: SparkSession
) -> dict[str, str]:
    """Checkpoints that nobody has any more and that would fit this new query: it, or its pipeline, was renamed.

    By location, what can be done with each.
    """
    base = settings.checkpoint(plan.pipeline)
    root = base.rpartition("/")[0]
    queries = [name for name in checkpoints_in(open_folder(base, spark)) if name not in in_use.queries]
    pipelines = [name for name in open_folder(root, spark).names() if name not in in_use.pipelines]
    candidates = {
        **{f"query {name}": f"{base}/{name}" for name in queries},
        **{f"pipeline {name}": f"{root}/{name}/{plan.name}" for name in pipelines},
    }
    found = {}
    for was, location in candidates.items():
        file = MoldauFile.parse(open_folder(location, spark).read(FILE), f"{location}/{FILE}")
        old, same = file.identity, Identity.of(plan, new.operators, file.salt)
        if old is None or (old.sources, old.operators) != (same.sources, same.operators):
            continue
        if old.query != new.query or old.sinks == same.sinks:
            found[location] = (
                f"there is a checkpoint of {was}, which reads the same and is not in what you run. If you have renamed "
                f"it, move its checkpoint to continue: from {location} to {base}/{plan.name}"
            )
    return found
