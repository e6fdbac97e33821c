"""The attack itself: many connections, one damaged frame after the other, each followed by a probe.

What the broker may do with a damaged frame: answer it, close the connection, or wait where there is something
to wait for: the rest of the frame, or records for a fetch. It must not fall silent; what else it must not do shows
elsewhere: in its count of unexpected errors, in its memory, and in whether it still serves.
"""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence

from fuzz.mutate import mutated
from fuzz.requests import RequestMaker, Target

# Longer than any answer takes, however busy the machine is.
PATIENCE_S = 30.0
# With frames that the broker may hold as long as it likes there is nothing to learn from patience.
WAITING_S = 0.1
FRAMES_PER_CONNECTION = 50
SAMPLES_PER_VERSION = 24

_FETCH = 1
_PROBE_ID = 0x7EED_BEEF
# ApiVersions v0 without a client id: answered as long as the connection is alive and in step.
_PROBE = struct.pack(">ihhih", 10, 18, 0, _PROBE_ID, -1)


def may_be_held(frame: bytes) -> bool:
    """Whether silence is a right answer: the frame ends elsewhere than its size says, or it is a fetch."""
    size: int
    api_key: int
    size, api_key = struct.unpack(">ih", frame[:6].ljust(6, b"\0"))
    return size != len(frame) - 4 or api_key == _FETCH


class _Link(asyncio.Protocol):
    """One connection; `outcome` is decided by the probe's answer or by the end of the connection."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[str] = self._loop.create_future()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 8:
            size, correlation_id = struct.unpack_from(">ii", self._buffer)
            if len(self._buffer) < 4 + size:
                return
            del self._buffer[: 4 + size]
            if correlation_id == _PROBE_ID:
                self._decide("answered")

    def connection_lost(self, exc: Exception | None) -> None:
        self._decide("closed")

    def _decide(self, outcome: str) -> None:
        if not self.outcome.done():
            self.outcome.set_result(outcome)

    async def exchange(self, data: bytes) -> str:
        assert self.transport is not None
        if self.transport.is_closing():
            return "closed"
        self.outcome = self._loop.create_future()
        if may_be_held(data):
            timer = self._loop.call_later(WAITING_S, self._decide, "held")
        else:
            timer = self._loop.call_later(PATIENCE_S, self._decide, "silent")
        self.transport.write(data + _PROBE)
        try:
            return await self.outcome
        finally:
            timer.cancel()


class Attack:
    """`outcomes` counts what became of the frames: answered, closed, held, silent."""

    def __init__(self, bootstrap: str, target: Target, versions: Sequence[tuple[int, int]], seed: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._rng = random.Random(seed)
        self._versions = versions
        self._wild = RequestMaker(target, self._rng, wild=True)
        tame = RequestMaker(target, self._rng)
        self._corpus = [tame.frame(*version) for version in versions for _ in range(SAMPLES_PER_VERSION)]
        self.outcomes: Counter[str] = Counter()

    @property
    def sent(self) -> int:
        return self.outcomes.total()

    async def run(
        self,
        *,
        frames: int | None = None,
        seconds: float | None = None,
        connections: int = 48,
        progress: Callable[[Attack], None] | None = None,
    ) -> None:
        """Ends after so many frames or seconds. A broker that refuses connections ends it with an OSError."""
        deadline = None if seconds is None else time.monotonic() + seconds
        frames_max = float("inf") if frames is None else frames

        def goes_on() -> bool:
            return self.sent < frames_max and (deadline is None or time.monotonic() < deadline)

        async def report() -> None:
            while progress is not None:
                await asyncio.sleep(5)
                progress(self)

        reporting = asyncio.ensure_future(report())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(connections):
                    group.create_task(self._worker(goes_on))
        finally:
            reporting.cancel()

    async def _worker(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            transport, link = await asyncio.get_running_loop().create_connection(_Link, *self._address)
            try:
                for _ in range(FRAMES_PER_CONNECTION):
                    if not goes_on():
                        return
                    outcome = await link.exchange(self._damaged())
                    self.outcomes[outcome] += 1
                    if outcome != "answered":
                        break
            finally:
                transport.abort()

    def _damaged(self) -> bytes:
        """Half of them well formed but senseless, half of them sensible but malformed."""
        if self._rng.random() < 0.5:
            return self._wild.frame(*self._rng.choice(self._versions))
        return mutated(self._rng.choice(self._corpus), self._rng, self._corpus)
