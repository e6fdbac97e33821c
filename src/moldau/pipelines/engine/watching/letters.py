"""Dead letters that came while a pipeline runs, counted by query.

Tasks write them to their topic, on whichever machine they run, and cannot tell the driver. So the end of the topic is
asked for now and then, in a thread of its own, and what is new is read: its headers say which query it is from.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import NamedTuple

from moldau.clocks import Clock, monotonic_ms
from moldau.errors import MoldauError
from moldau.pipelines.engine.bad_records.dead_letter_topic import DeadLetterTopic, Letter, dead_letter_topics
from moldau.pipelines.model.common_options import DEAD_LETTERS
from moldau.pipelines.model.pipeline import Pipeline
from moldau.pipelines.model.references import hidden

logger = logging.getLogger(__name__)

EVERY_MS = 5_000
_PAUSE_AFTER_ERROR_MS = 30_000
_LAST_LOOK_S = 3.0
_ORIGINS_MAX = 100_000  # remembered; of more bad records, repeated ones are counted twice
_CLIENT = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "3000"}


class Found(NamedTuple):
    """Of one query, since the run began."""

    letters: int = 0
    last: str = ""  # reason of the newest


class LetterReader:
    """Used by one thread, which never waits, except for the last look."""

    def __init__(self, clock: Clock = monotonic_ms) -> None:
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "moldau-dead-letters")
        self._looks: dict[str, tuple[int, Future[None]]] = {}  # by pipeline: when it is over, the next is due then
        self._topics: dict[str, list[DeadLetterTopic]] = {}
        self._found: dict[tuple[str, str], Found] = {}
        self._origins: set[Hashable] = set()  # a batch that is repeated reports its bad records again

    def found(self, pipeline: str, query: str) -> Found:
        return self._found.get((pipeline, query), Found())

    def look(self, pipelines: Iterable[Pipeline], *, is_last: bool = False) -> None:
        """Ask for what is new, if it is time."""
        for pipeline in pipelines:
            if DEAD_LETTERS not in pipeline.settings:
                continue
            due_ms, running = self._looks.get(pipeline.name, (0, None))
            if is_last or ((running is None or running.done()) and self._clock() >= due_ms):
                look = self._thread.submit(self._look, pipeline)
                self._looks[pipeline.name] = self._clock() + EVERY_MS, look
        if is_last:
            for _, look in self._looks.values():
                with suppress(FutureTimeoutError):
                    look.result(_LAST_LOOK_S)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    # What follows runs in the thread that asks.

    def _look(self, pipeline: Pipeline) -> None:
        try:
            if pipeline.name not in self._topics:
                self._topics[pipeline.name] = dead_letter_topics(pipeline, _CLIENT)
            for topic in self._topics[pipeline.name]:
                for letter in topic.new_letters():
                    self._note(pipeline.name, letter)
        except (MoldauError, OSError) as error:
            logger.debug("the dead letters of %s are not known: %s", pipeline.name, error)
            self._looks[pipeline.name] = self._clock() + _PAUSE_AFTER_ERROR_MS, self._looks[pipeline.name][1]
        except Exception:
            logger.exception("internal error while counting dead letters (please report it)")

    def _note(self, pipeline: str, letter: Letter) -> None:
        key = pipeline, letter.facts.get("moldau.query", "")
        if letter.origin is not None and (*key, letter.origin) in self._origins:
            return
        if len(self._origins) < _ORIGINS_MAX:
            self._origins.add((*key, letter.origin))
        self._found[key] = Found(self.found(*key).letters + 1, hidden(letter.reason))
