"""The life of a connector as tables: what to do next, and what Connect's clients are told about it.

The worker compares what is wanted (the target state in the config topic) with what runs, again and again:

    wanted \\ run is  ABSENT   CURRENT   OUTDATED   ENDING   ENDED
    STARTED          start    -         end        -        -  (it failed or finished; a restart makes it OUTDATED)
    PAUSED           -        end       end        -        forget
    STOPPED          -        end       end        -        forget
    nothing          -        end       end        -        forget

A run that was asked to end is ENDING until its micro-batches are done, then it is forgotten, and so ABSENT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from moldau.pipelines.engine.supervisor import RunningQuery, State
from moldau.pipelines.model.references import hidden
from moldau.pipelines.worker.records import Status, Target


class Stage(Enum):
    ABSENT = auto()
    CURRENT = auto()  # it runs as it was defined
    OUTDATED = auto()  # its definition has changed, or a restart was asked for
    ENDING = auto()
    ENDED = auto()  # by itself


class Action(Enum):
    NONE = auto()
    START = auto()
    END = auto()
    FORGET = auto()


_WANTED = {Stage.ABSENT: Action.START, Stage.OUTDATED: Action.END}
_UNWANTED = {Stage.CURRENT: Action.END, Stage.OUTDATED: Action.END, Stage.ENDED: Action.FORGET}

# Connect's words. FAILED stays for what needs a person: what fails otherwise starts again by itself.
_TASK_STATES = {
    State.STARTING: "UNASSIGNED",
    State.RUNNING: "RUNNING",
    State.RETRYING: "RESTARTING",
    State.FAILED: "FAILED",
    State.STOPPED: "UNASSIGNED",
    State.FINISHED: "STOPPED",
}
_RESTING = {Target.PAUSED: "PAUSED", Target.STOPPED: "STOPPED"}


def next_action(wanted: Target | None, stage: Stage) -> Action:
    """None: the connector was deleted."""
    return (_WANTED if wanted is Target.STARTED else _UNWANTED).get(stage, Action.NONE)


class Teller:
    """Makes statuses with this worker's name."""

    def __init__(self, worker_id: str, generation: int) -> None:
        self._worker_id = worker_id
        self._generation = generation

    def connector(self, wanted: Target, stage: Stage, error: str | None) -> Status:
        """RUNNING once it has become a pipeline; its tasks may still fail."""
        if wanted is not Target.STARTED:
            return self._status(_RESTING[wanted])
        if error is not None:
            return self._status("FAILED", error)
        return self._status("UNASSIGNED" if stage is Stage.ABSENT else "RUNNING")

    def tasks(self, wanted: Target, queries: Sequence[RunningQuery], count: int) -> Mapping[int, Status]:
        """`count` is how many there were when it last ran."""
        if wanted is Target.STOPPED:
            return {}
        if wanted is Target.PAUSED:
            return {task: self._status("PAUSED") for task in range(count)}
        return {
            task: self._status(_TASK_STATES[query.state], query.reason or None) for task, query in enumerate(queries)
        }

    def _status(self, state: str, trace: str | None = None) -> Status:
        return Status(state, self._worker_id, hidden(trace) if trace else None, self._generation)
