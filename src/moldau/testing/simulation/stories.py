"""`simulate`: a story (an async function that uses a cluster) in a world of its own, from a seed."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, overload

from moldau.config.properties import as_property
from moldau.errors import SimulationError
from moldau.local_cluster import shared_properties
from moldau.testing.simulation.cluster import PROPERTIES, SimulatedCluster
from moldau.testing.simulation.guards import guarded
from moldau.testing.simulation.kafka import APPLICATION, SimulatedKafka
from moldau.testing.simulation.loop import SECOND, Timeout, World
from moldau.testing.simulation.patches import patched, quietly_collected
from moldau.testing.simulation.processes import UNAWAITED, ApplicationLoop, asyncio_logger, said
from moldau.testing.simulation.timeline import TimelineHandler, broker_logs_to

T = TypeVar("T")
Story = Callable[[SimulatedKafka], Awaitable[T]]

START_S = 60
TIMELINE_LINES = 40
"""Of the last ones, in the report of a failure."""
CLOSE_ATTEMPTS = 20
pytest_id: ContextVar[str | None] = ContextVar("pytest_id", default=None)
"""Of the test that is the story, for the report of a failure."""


@overload
def simulate(
    story: Story[T],
    *,
    brokers: int = 3,
    seed: int = 0,
    seeds: None = None,
    config: Mapping[str, object] | None = None,
    limit_s: float = 600,
) -> T: ...


@overload
def simulate(
    story: Story[T],
    *,
    brokers: int = 3,
    seeds: Iterable[int],
    config: Mapping[str, object] | None = None,
    limit_s: float = 600,
) -> list[T]: ...


def simulate(
    story: Story[T],
    *,
    brokers: int = 3,
    seed: int = 0,
    seeds: Iterable[int] | None = None,
    config: Mapping[str, object] | None = None,
    limit_s: float = 600,
) -> T | list[T]:
    """Runs `story(cluster)` against simulated brokers and returns what it returns; with `seeds`, once for each.

    brokers   how many there are
    seed      decides everything random: the same seed is the same run
    config    server properties of the brokers
    limit_s   in virtual seconds: SimulationError if the story takes longer

    What the story raises comes out of `simulate`, with the seed and the end of the timeline as a note.
    """
    __tracebackhide__ = True
    if asyncio._get_running_loop() is not None:
        raise SimulationError("simulate() runs event loops of its own: call it from a function that is not async")
    if brokers < 1:
        raise SimulationError(f"brokers={brokers}: a simulated cluster has at least one broker")
    if limit_s <= 0:
        raise SimulationError(f"limit_s={limit_s}: expected more than 0 virtual seconds")
    if seeds is not None:
        return [_simulate(story, brokers, one, config or {}, limit_s) for one in checked_seeds(seeds)]
    return _simulate(story, brokers, seed, config or {}, limit_s)


def checked_seeds(seeds: Iterable[int]) -> list[int]:
    if not isinstance(seeds, Iterable):
        raise SimulationError(f"seeds={seeds}: expected several, such as range(5); for one use seed={seeds}")
    found = list(seeds)
    if not found:
        raise SimulationError("seeds has no seed, so nothing would run: expected at least one, such as range(5)")
    return found


def _simulate(story: Story[T], brokers: int, seed: int, config: Mapping[str, object], limit_s: float) -> T:
    __tracebackhide__ = True
    given = {key: as_property(value) for key, value in config.items()}
    properties = shared_properties(brokers, Path(), {"zookeeper.connect": PROPERTIES["zookeeper.connect"], **given})
    with quietly_collected():
        return _in_world(World(seed), seed, partial(_run, story, brokers, properties, limit_s))


def _in_world(world: World, seed: int, run: Callable[[World], T]) -> T:
    __tracebackhide__ = True
    try:
        with patched(world), guarded(), _logs_noted(world):
            return run(world)
    except BaseException as error:
        if world.events:
            _note_failed_tasks(world)
            error.add_note(_report(world, seed))
        raise
    finally:
        for text, why in _note_failed_tasks(world):  # of a story that ended well: as asyncio.run() does
            asyncio_logger.error("%s", text, exc_info=why)
        _end(world)


def _note_failed_tasks(world: World) -> list[tuple[str, BaseException]]:
    """Those that still exist and that nobody awaited, once; asyncio told of the others when they were collected."""
    failed = []
    for loop in world.loops:
        for task in loop.unawaited() if isinstance(loop, ApplicationLoop) else ():
            error = task.exception()
            assert error is not None
            text = f"a task ended with {said(error)}{UNAWAITED}"
            world.note_earlier(world.now_us if task.ended_us is None else task.ended_us, loop.host.name, text)
            failed.append((f"{loop.host.name}: {text}", error))
    return failed


def _end(world: World) -> None:
    """Nothing is left that would complain when it is collected later, perhaps within another test."""
    tasks = [task for loop in world.loops for task in asyncio.all_tasks(loop)]
    world.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for task in tasks:
            _close(task.get_coro())
        tasks.clear()


def _close(coroutine: Any) -> None:
    """Each `finally` and `except` with an `await` in it takes one more attempt."""
    for _ in range(CLOSE_ATTEMPTS):
        try:
            coroutine.close()
        except BaseException:  # nobody can be told
            continue
        return


def _run(story: Story[T], brokers: int, properties: Mapping[str, str], limit_s: float, world: World) -> T:
    __tracebackhide__ = True
    cluster = SimulatedCluster(world, brokers, properties)
    cluster.start()
    try:
        world.run(lambda: cluster.is_serving, START_S * SECOND)
    except Timeout:
        raise SimulationError(f"the brokers did not start within {START_S} virtual seconds") from None
    kafka = SimulatedKafka(cluster)
    results: list[T] = []
    failures: list[BaseException] = []

    async def main() -> None:
        __tracebackhide__ = True
        try:
            if not _takes_the_cluster(story):
                raise SimulationError(f"a story is an async function that takes the cluster; {story!r} does not")
            told = story(kafka)
            if not inspect.isawaitable(told):
                raise SimulationError(f"a story is an async function that takes the cluster; {story!r} is not async")
            results.append(await told)
        except BaseException as error:  # of any kind: pytest's outcomes are no Exceptions
            failures.append(error)
            kafka.note(f"raises {type(error).__name__}")
            await asyncio.Future()  # the run is over

    process = kafka.process(APPLICATION, main)
    try:
        world.run(lambda: bool(results or failures) or not process.is_running, world.now_us + round(limit_s * SECOND))
    except Timeout:
        waiting = "\n".join(f"  {process.waits_at()}" for process in kafka.processes.values())
        raise SimulationError(f"the story did not end within {limit_s:g} virtual seconds:\n{waiting}") from None
    if failures:
        raise failures[0]
    if not results:
        raise SimulationError("the story ended its own process; kill only brokers, and processes from process()")
    return results[0]


def _takes_the_cluster(story: Callable[..., object]) -> bool:
    try:
        inspect.signature(story).bind(None)
    except TypeError:
        return False
    except ValueError:  # a builtin: it has no signature
        pass
    return True


def _report(world: World, seed: int) -> str:
    timeline = world.timeline()
    left_out = len(timeline) - TIMELINE_LINES
    lines = [f"  … {left_out} lines before" if left_out > 0 else "", *timeline[-TIMELINE_LINES:]]
    lines[:0] = [line for line in timeline[:-TIMELINE_LINES] if line.endswith(UNAWAITED)]
    simulated = f"Simulated with seed={seed}, {world.now_us / SECOND:.3f} virtual seconds."
    return "\n".join(["Timeline (virtual seconds):", *filter(None, lines), simulated, _how_to_replay(seed)])


def _how_to_replay(seed: int) -> str:
    """Python orders sets of strings by its hash seed, which a process cannot find out if it is a random one."""
    hash_seed = os.environ.get("PYTHONHASHSEED", "random")
    is_known = hash_seed.isdigit() or not sys.flags.hash_randomization
    setting = f"PYTHONHASHSEED={hash_seed if hash_seed.isdigit() else 0}"
    test = pytest_id.get()
    again = f'{setting} pytest "{test}"' if test else f"simulate(…, seed={seed}) in a process with {setting}"
    hint = (
        "" if is_known else " (PYTHONHASHSEED was not set, so that run may differ from this one: set it for all runs)"
    )
    return f"Run it again: {again}{hint}"


@contextmanager
def _logs_noted(world: World) -> Iterator[None]:
    """The logs of the brokers go to the timeline and nowhere else; those of the application go there as well."""
    everything, handler = logging.getLogger(), TimelineHandler(world)
    everything.addHandler(handler)
    try:
        with broker_logs_to(handler):
            yield
    finally:
        everything.removeHandler(handler)
