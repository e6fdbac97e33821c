"""Long work on the loop: done at once if it is short, else in turns with everybody else."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest

from moldau.broker import turns as turns_module
from moldau.broker.turns import Turns, Work


def in_thread(work: Callable[[], Any]) -> Any:
    return asyncio.get_running_loop().run_in_executor(None, work)


def counting(upto: int) -> Work[int]:
    total = 0
    for number in range(upto):
        total += number
        yield
    return total


async def test_short_work_is_done_at_once() -> None:
    assert Turns(in_thread, perf_counter).run(counting(10)) == 45


async def test_long_work_lets_others_have_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    turns = Turns(in_thread, perf_counter)
    others = 0
    ended = False

    async def other() -> None:
        nonlocal others
        while not ended:
            others += 1
            await asyncio.sleep(0)

    running = asyncio.ensure_future(other())
    outcome = turns.run(counting(100))
    assert inspect.isawaitable(outcome)
    assert await outcome == 4950
    ended = True
    await running
    assert others >= 99


async def test_of_many_long_works_one_has_a_turn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    turns = Turns(in_thread, perf_counter)
    rounds = 0
    seen: list[int] = []

    def noting() -> Work[None]:
        for _ in range(20):
            seen.append(rounds)
            yield

    async def count() -> None:
        nonlocal rounds
        while len(seen) < 100:
            rounds += 1
            await asyncio.sleep(0)

    await asyncio.gather(count(), *(turns.finish(noting()) for _ in range(5)))
    later = seen[5:]  # the first turn of each is its own
    assert len(set(later)) == len(later), "two of them ran between two looks at the sockets"


async def test_a_function_runs_in_a_thread_and_an_awaitable_is_awaited() -> None:
    async def answer() -> int:
        return 42

    def work() -> Work[tuple[str, int]]:
        name = yield lambda: threading.current_thread().name
        number = yield answer()
        return name, number

    name, number = await Turns(in_thread, perf_counter).finish(work())
    assert name != threading.current_thread().name
    assert number == 42


async def test_what_goes_wrong_in_a_thread_is_the_works_own_affair() -> None:
    def fails() -> None:
        raise ValueError("no")

    def work() -> Work[str]:
        try:
            yield fails
        except ValueError as error:
            return str(error)
        return "yes"

    assert await Turns(in_thread, perf_counter).finish(work()) == "no"

    def careless() -> Work[None]:
        yield fails

    with pytest.raises(ValueError, match="no"):
        await Turns(in_thread, perf_counter).finish(careless())


async def test_items_come_with_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "TURN_S", 0.0)
    turns = Turns(in_thread, perf_counter)
    others: list[int] = []
    loop = asyncio.get_running_loop()
    seen = []
    async for item in turns.each(range(3)):
        assert len(others) == item
        loop.call_soon(others.append, item)
        seen.append(item)
    assert seen == [0, 1, 2]
