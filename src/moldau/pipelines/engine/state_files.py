"""Which pipelines run on this machine: a file each, which `list`, `status` and `stop` of other processes read.

    <folder>/<pipeline>-<hash of the checkpoint>.json   what the run is doing, rewritten about once a second
                                               .lock    locked as long as the process lives: no two runs of a pipeline
                                               .stop    written by `stop`; the run sees it and ends
    <checkpoints>/.<pipeline>.lock             locked likewise, for those who have another state folder; not on hdfs://,
                                               s3a:// and the like, where it is up to people that there is one run

The file stays when a run has ended and says how. A process that was killed leaves one that says RUNNING beside a lock
that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from moldau.clocks import wall_clock_ms
from moldau.errors import CommandError
from moldau.pipelines.connectors.writers.unwritable import unwritable
from moldau.pipelines.engine.supervisor import Listener, RunningQuery, State
from moldau.pipelines.model.pipeline import Pipeline
from moldau.pipelines.model.references import hidden

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "MOLDAU_STATE_DIR"
_WORST_FIRST = (
    State.FAILED,
    State.RETRYING,
    State.STARTING,
    State.RUNNING,
    State.STOPPED,
    State.FINISHED,
)

# Its last reason and progress say nothing about a process that is no more.
_KILLED_QUERY = {"state": State.STOPPED, "reason": "", "attempt": 0, "next_try_ms": None, "progress": None}


def state_folder() -> Path:
    if given := os.environ.get(FOLDER_VARIABLE):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "moldau" / "pipelines"


def overall(states: Sequence[State]) -> State:
    """The state of a pipeline: the worst of its queries'."""
    return next((state for state in _WORST_FIRST if state in states), State.STARTING)


class RunFile:
    """The files of one pipeline that this process runs."""

    def __init__(self, pipeline: Pipeline, checkpoint: str) -> None:
        """Raises CommandError if the pipeline is running already."""
        self._path = _run_path(pipeline, checkpoint)
        self._locks = _locks(pipeline, checkpoint)
        self._facts: dict[str, Any] = {
            "pipeline": pipeline.name,
            "file": str(Path(pipeline.file).resolve()) if pipeline.file else None,
            "checkpoint": hidden(checkpoint),
            "pid": os.getpid(),
            "started_ms": wall_clock_ms(),
        }
        self._path.with_suffix(".stop").unlink(missing_ok=True)
        self.write(State.STARTING, [])

    def write(self, state: State, queries: Sequence[Mapping[str, Any]], **more: Any) -> None:
        facts = self._facts | {"state": state, "updated_ms": wall_clock_ms(), "queries": queries} | more
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(facts, ensure_ascii=False), "utf-8")
        new.replace(self._path)

    def asked_to_stop(self) -> str | None:
        """None: no; else how: "" after the batch, "now" at once."""
        try:
            return self._path.with_suffix(".stop").read_text("utf-8")
        except FileNotFoundError:
            return None

    def close(self) -> None:
        self._path.with_suffix(".stop").unlink(missing_ok=True)
        self._locks.close()


@contextlib.contextmanager
def kept_from_running(pipeline: Pipeline, checkpoint: str) -> Iterator[None]:
    """Nobody can start the pipeline meanwhile. Raises CommandError if it is running already."""
    with _locks(pipeline, checkpoint):
        yield


class StateFiles(Listener):
    """Keeps the files of a run up to date, and does what `stop` asks for."""

    def __init__(
        self,
        files: Mapping[str, RunFile],
        stop: Callable[..., None],
        facts_of: Callable[[RunningQuery], Mapping[str, Any]],
    ) -> None:
        self._files = dict(files)
        self._stop = stop
        self._facts_of = facts_of
        self._stopped: dict[str, str] = {}
        self.more: dict[str, Any] = {}  # about the whole run, such as its metrics port

    def polled(self, queries: Sequence[RunningQuery]) -> None:
        for name, file in self._files.items():
            how = file.asked_to_stop()
            if how is not None and self._stopped.get(name) != how:
                self._stopped[name] = how
                self._stop(name, now=how == "now")
        self._write(queries)

    def ended(self, queries: Sequence[RunningQuery]) -> None:
        self._write(queries)

    def _write(self, queries: Sequence[RunningQuery]) -> None:
        for name, file in list(self._files.items()):
            own = [query for query in queries if query.pipeline == name]
            file.write(overall([query.state for query in own]), [self._facts_of(query) for query in own], **self.more)
            if all(query.state.is_end for query in own):  # another process may run it while others go on here
                file.close()
                del self._files[name]


def query_facts(query: RunningQuery) -> dict[str, Any]:
    """What `status --json` says about a query."""
    return {
        "name": query.name,
        "state": query.state,
        "reason": query.reason,
        "since_ms": query.since_ms,
        "restarts": query.restarts,
        "attempt": query.attempt,
        "next_try_ms": query.next_try_ms,
    }


class KnownRun:
    """A pipeline that runs, or ran last, as its file says."""

    def __init__(self, path: Path, facts: Mapping[str, Any], *, is_alive: bool) -> None:
        self._path = path
        self.is_alive = is_alive
        # The file of a process that was killed still says what it was doing then.
        is_killed = not is_alive and not State(facts["state"]).is_end
        self.facts = _of_killed(facts) if is_killed else {**facts}

    @property
    def name(self) -> str:
        return str(self.facts["pipeline"])

    def is_meant_by(self, text: str) -> bool:
        """By its name or its file."""
        return text == self.name or (
            self.facts["file"] is not None and Path(text).resolve() == Path(self.facts["file"])
        )

    def ask_to_stop(self, *, now: bool = False) -> None:
        self._path.with_suffix(".stop").write_text("now" if now else "", "utf-8")

    def has_ended(self) -> bool:
        return not _is_locked(self._path)


def _of_killed(facts: Mapping[str, Any]) -> dict[str, Any]:
    queries = [query if State(query["state"]).is_end else query | _KILLED_QUERY for query in facts["queries"]]
    return {**facts, "state": State.STOPPED, "reason": "the process was killed", "queries": queries}


def known_runs(*, with_ended: bool = False) -> list[KnownRun]:
    """The pipelines that run on this machine as this user, by name; then, if asked for, those of which a file is
    left."""
    folder = state_folder()
    found = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError, KeyError):  # it was removed meanwhile, or is not ours
            run = KnownRun(path, json.loads(path.read_text("utf-8")), is_alive=_is_locked(path))
            found += [run] if run.is_alive or with_ended else []
    return sorted(found, key=lambda run: not run.is_alive)


def _run_path(pipeline: Pipeline, checkpoint: str) -> Path:
    key = hashlib.sha256(checkpoint.encode()).hexdigest()[:8]
    return state_folder() / f"{pipeline.name.replace('/', '_')}-{key}.json"


def _locks(pipeline: Pipeline, checkpoint: str) -> contextlib.ExitStack:
    """The locks of a pipeline, held until they are closed."""
    path = _run_path(pipeline, checkpoint)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        held.enter_context(_lock(path.with_suffix(".lock"), lambda: _refusal(pipeline.name, path)))
        local = checkpoint.removeprefix("file://")
        if "://" not in local:
            # Another user or container has another state folder. Two runs on a checkpoint lose and repeat rows.
            beside = Path(local).with_name(f".{pipeline.name}.lock")
            message = f"another process runs pipeline {pipeline.name} with the checkpoint {checkpoint}: stop it first"
            try:
                beside.parent.mkdir(parents=True, exist_ok=True)
                held.enter_context(_lock(beside, lambda: message))
            except OSError as error:
                hint = "choose another (--checkpoint, or `checkpoint` in the settings), or let this user write to it"
                raise CommandError(unwritable(f"the checkpoint folder {beside.parent}", error, hint)) from None
        else:
            # Object stores cannot lock, and a file with a heartbeat is no promise when a process is only slow.
            logger.warning(
                "pipeline %s: checkpoints on %s:// have no lock: make sure that only one machine runs it, or records "
                "are lost and repeated",
                pipeline.name,
                local.partition("://")[0],
            )
        return held.pop_all()


def _lock(path: Path, refusal: Callable[[], str]) -> TextIO:
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise CommandError(refusal()) from None
    return lock


def _is_locked(path: Path) -> bool:
    try:
        with path.with_suffix(".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may look at the same time
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def _refusal(pipeline: str, path: Path) -> str:
    try:
        process = f" in process {json.loads(path.read_text('utf-8'))['pid']}"
    except (OSError, ValueError, KeyError):
        process = ""
    return f"pipeline {pipeline} is already running{process}: stop it first with `moldau pipeline stop {pipeline}`"
