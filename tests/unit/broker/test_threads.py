"""Lanes of threads: work is done, failures arrive, and one that hangs holds up its own lane alone."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from moldau.broker.threads import DISK_THREADS, Lane, Threads
from tests.unit.broker.offline import until


async def test_work_is_done_and_failures_arrive() -> None:
    lane = Lane(asyncio.get_running_loop(), "test", 2)
    assert await asyncio.gather(*(lane(pow, number, 2) for number in range(50))) == [n * n for n in range(50)]
    with pytest.raises(ZeroDivisionError):
        await lane(divmod, 1, 0)
    assert lane.busy_s == 0
    lane.stop()


async def test_a_lane_that_hangs_holds_up_no_other() -> None:
    slow, fast = Path("slow"), Path("fast")
    threads = Threads(asyncio.get_running_loop(), [slow, fast])
    may_go = threading.Event()
    stuck = [threads.disk(slow)(may_go.wait, 60) for _ in range(2 * DISK_THREADS)]
    for lane in (threads.disk(fast), threads.metadata, threads.compute, threads.files, threads.cleaning):
        assert await lane(lane.name.upper) == lane.name.upper()
    await until(lambda: threads.disk(slow).busy_s)
    assert not any(one.done() for one in stuck)
    may_go.set()
    assert await asyncio.gather(*stuck) == [True] * len(stuck)
    threads.stop()


async def test_what_is_cancelled_before_it_began_does_not_run_and_a_stopped_lane_begins_nothing() -> None:
    lane = Lane(asyncio.get_running_loop(), "test", 1)
    may_go, ran = threading.Event(), threading.Event()
    running = lane(may_go.wait, 60)
    waiting = lane(ran.set)
    waiting.cancel()
    may_go.set()
    assert await running
    assert await lane(int) == 0, "it came after the one that was cancelled"
    assert not ran.is_set()
    threads = list(lane._threads)
    lane.stop()
    assert lane(ran.set).cancelled()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


async def test_work_whose_task_was_cancelled_is_waited_for_as_long_as_asked() -> None:
    """A broker that stops while it makes folders would otherwise leave while they are made."""
    threads = Threads(asyncio.get_running_loop(), [Path("a")])
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(30)
        ended.set()

    task = asyncio.ensure_future(threads.files(work))
    await until(lambda: threads.files.busy_s)
    task.cancel()
    await threads.settle(0.01)
    assert not ended.is_set()
    may_end.set()
    await threads.settle(30)
    assert ended.is_set()
    threads.stop()
