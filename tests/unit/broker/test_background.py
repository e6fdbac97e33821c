"""Background tasks end with their broker."""

from __future__ import annotations

import asyncio

from moldau.broker.background import BackgroundTasks


async def test_a_task_that_ends_when_the_broker_closes_starts_no_other() -> None:
    """The last write of the controller tells of a new topic: its folders must not be made behind a stopped broker."""
    tasks = BackgroundTasks(asyncio.get_running_loop())
    started: list[str] = []

    async def second() -> None:
        started.append("second")

    async def first() -> None:
        try:
            started.append("first")
            await asyncio.Event().wait()
        finally:
            tasks.spawn(second())

    tasks.spawn(first())
    while not started:
        await asyncio.sleep(0)
    await tasks.close()
    assert started == ["first"]


async def test_a_task_that_fails_takes_no_other_with_it() -> None:
    tasks = BackgroundTasks(asyncio.get_running_loop())

    async def fail() -> None:
        raise ValueError

    async def work() -> int:
        return 7

    failed, worked = tasks.spawn(fail()), tasks.spawn(work())
    assert await worked == 7
    await tasks.close()
    assert isinstance(failed.exception(), ValueError)
