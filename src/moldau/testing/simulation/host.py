"""A machine: its clocks, and the process that runs on it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.testing.simulation.loop import MS, SECOND, SimulatedLoop, World

if TYPE_CHECKING:
    from moldau.testing.simulation.network import Network

WALL_CLOCK_START_US = 1_800_000_000 * SECOND
CLOCK_SKEW_US = 50 * MS
"""How far the wall clocks of two machines are apart, without anybody setting them."""
UPTIME_MAX_US = 10_000_000 * SECOND


class Host:
    """One process runs at a time; each has a loop of its own."""

    loop_type: type[SimulatedLoop] = SimulatedLoop  # type: ignore[type-abstract] # what is missing, nobody calls

    def __init__(self, world: World, network: Network, name: str) -> None:
        self.world = world
        self.network = network
        self.name = name
        self.index = network.add(self)
        self.is_up = True
        """The machine has power."""
        self.boots = 0
        self.wall_offset_us = world.between_us(-CLOCK_SKEW_US, CLOCK_SKEW_US)
        self.monotonic_offset_us = world.between_us(0, UPTIME_MAX_US)
        """Differs between machines: times of one mean nothing to another."""
        self.disk_is_hanging = False
        """What has to reach the disk waits."""
        self.loop: SimulatedLoop | None = None
        self._timer_s = 0.0

    # -- its process

    def start_process(self) -> SimulatedLoop:
        assert self.loop is None, f"{self.name} runs already"
        if not self.is_up:
            self.is_up = True
            self.boots += 1
            self.monotonic_offset_us = -self.world.now_us
            self.network.booted(self)
        self.loop = self.loop_type(self.world, self, self.network)
        return self.loop

    def kill(self) -> None:
        """As `kill -9`: its sockets are closed by the kernel, its files keep what was written."""
        loop, self.loop = self.loop, None
        if loop is not None:
            loop.kill()
            self.network.process_died(loop)

    def exited(self) -> None:
        """The process ended by itself."""
        self.kill()

    def lose_power(self) -> None:
        """The machine vanishes: nobody hears of it, and what was not synced to its disk is lost."""
        loop, self.loop = self.loop, None
        self.is_up = False
        if loop is not None:
            loop.kill()
        self.network.machine_died(self)

    def pause(self) -> None:
        if self.loop is not None:
            self.loop.pause()

    def resume(self) -> None:
        if self.loop is not None and self.loop.is_paused:
            self.loop.resume()

    def hang_disk(self) -> None:
        self.disk_is_hanging = True

    def release_disk(self) -> None:
        self.disk_is_hanging = False

    @property
    def is_running(self) -> bool:
        return self.loop is not None and not self.loop.is_paused

    # -- its clocks

    def wall_clock_ms(self) -> int:
        return (WALL_CLOCK_START_US + self.world.now_us + self.wall_offset_us) // MS

    def monotonic_ms(self) -> int:
        return (self.world.now_us + self.monotonic_offset_us) // MS

    def jump_clock(self, by_us: int) -> None:
        """Somebody sets the wall clock."""
        self.wall_offset_us += by_us

    def timer(self) -> float:
        """Measures code, which takes no virtual time: now and then it says that a turn was long."""
        if self.world.random.random() < 0.02:
            self._timer_s += 0.005
        return self._timer_s

    @property
    def boot_id(self) -> str:
        return f"{self.name}-{self.boots}"


def seeded_uuids(world: World) -> Callable[[], uuid.UUID]:
    """Random ids out of the seed; none that tools would take for an option (a leading "-" in base64)."""

    def new_uuid() -> uuid.UUID:
        return uuid.UUID(int=world.random.getrandbits(124), version=4)

    return new_uuid
