"""When brokers that died are restarted."""

from __future__ import annotations

from pathlib import Path

from moldau.local_cluster import BrokerProcess, Restarter


class Dying(BrokerProcess):
    """A broker whose process is over as soon as it was started."""

    def __init__(self, code: int = 1) -> None:
        super().__init__(1, 1, Path("nowhere"), {})
        self.code = code
        self.starts = 0
        self.is_wanted = True

    @property
    def exit_code(self) -> int | None:
        return self.code

    def start(self) -> None:
        self.starts += 1


def test_the_wait_before_a_restart_doubles_up_to_ten_seconds() -> None:
    said: list[str] = []
    broker = Dying()
    restarter = Restarter([broker], said.append)
    for step in range(4_000):
        restarter.tick(1_000 + step / 100)
    waits = [line.rpartition(" in ")[2] for line in said]
    assert waits[:8] == ["0.2 s", "0.4 s", "0.8 s", "1.6 s", "3.2 s", "6.4 s", "10.0 s", "10.0 s"]
    assert broker.starts == len(said) - 1
    assert said[0] == "broker 1 exited with code 1; restarting it in 0.2 s"


def test_one_that_ended_well_or_is_not_wanted_is_left_alone() -> None:
    said: list[str] = []
    well, unwanted = Dying(code=0), Dying()
    unwanted.is_wanted = False
    restarter = Restarter([well, unwanted], said.append)
    for step in range(100):
        restarter.tick(step)
    assert (well.starts, unwanted.starts) == (0, 0)
    assert said == ["broker 1 was stopped and is not restarted"]


def test_one_that_is_stopped_while_it_waits_is_not_started() -> None:
    broker = Dying(code=-9)
    restarter = Restarter([broker], lambda _: None)
    restarter.tick(100.0)
    broker.is_wanted = False
    restarter.tick(200.0)
    assert broker.starts == 0
