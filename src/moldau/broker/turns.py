"""Long work on the event loop, done in turns, so that no request blocks the others.

A handler whose work grows with its request is a generator. It yields wherever other requests may run. Short work is
done at once, and then a yield costs almost nothing. If the generator yields an awaitable, it is resumed with its
result. If it yields a function, that runs in a thread, and may use only data that nobody changes meanwhile.

    for one in request.partitions:
        results.append(look_up(one))
        yield
    found = yield partial(search, batch)

Between two turns everything may change: other requests are handled, leaders change, topics are deleted. The next
request of the same connection waits until the work is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, TypeAlias, TypeVar

TURN_S = 0.003
"""How long one turn takes: long enough that the changes of turns do not matter, far below what a client notices."""

T = TypeVar("T")
InThread: TypeAlias = "Callable[[], Any]"
Wanted: TypeAlias = "InThread | Awaitable[Any] | None"
Work: TypeAlias = "Generator[Any, Any, T]"
"""What it yields is a `Wanted`."""


class Turns:
    """All long work of a broker: however many requests there are, one of them has a turn between two looks at the
    sockets."""

    def __init__(self, in_thread: Callable[[InThread], Awaitable[Any]], timer: Callable[[], float]) -> None:
        self._in_thread = in_thread
        self._timer = timer
        self._pause_lock = asyncio.Lock()

    def run(self, work: Work[T]) -> T | Coroutine[Any, Any, T]:
        """The result of the work, or an awaitable of it if one turn is not enough."""
        try:
            wanted = next(work)
        except StopIteration as end:  # most work does not even yield, and pays for no clock
            result: T = end.value
            return result
        outcome = self._turn(work, lambda: wanted)
        return outcome.value if isinstance(outcome, StopIteration) else self._resume(work, outcome)

    async def finish(self, work: Work[T]) -> T:
        """The same for those who wait anyway."""
        outcome = self._turn(work, work.__next__)
        return outcome.value if isinstance(outcome, StopIteration) else await self._resume(work, outcome)

    async def _resume(self, work: Work[T], wanted: Wanted) -> T:
        outcome: StopIteration | Wanted = wanted
        while not isinstance(outcome, StopIteration):
            resume: Callable[[], Any] = work.__next__
            if outcome is None:
                await self.pause()
            else:
                resume = await self._resumption(work, outcome)
            outcome = self._turn(work, resume)
        result: T = outcome.value
        return result

    async def _resumption(self, work: Work[T], wanted: InThread | Awaitable[Any]) -> Callable[[], Any]:
        try:
            result = await (wanted if isinstance(wanted, Awaitable) else self._in_thread(wanted))
        except Exception as error:
            failure = error
            return lambda: work.throw(failure)
        return lambda: work.send(result)

    async def each(self, items: Iterable[T]) -> AsyncIterator[T]:
        """The items, with a pause whenever the time of a turn is over. For handlers that also wait for other things."""
        ends_s = self._timer() + TURN_S
        for item in items:
            yield item
            if self._timer() >= ends_s:
                await self.pause()
                ends_s = self._timer() + TURN_S

    async def pause(self) -> None:
        async with self._pause_lock:
            await asyncio.sleep(0)

    def _turn(self, work: Work[Any], resume: Callable[[], Wanted]) -> StopIteration | Wanted:
        """The end of the work, or what it waits for; None when its time is over."""
        timer = self._timer
        ends_s = timer() + TURN_S
        try:
            wanted = resume()
            while wanted is None and timer() < ends_s:
                wanted = next(work)
            return wanted
        except StopIteration as end:
            return end
