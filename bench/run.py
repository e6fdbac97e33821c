"""The runner: `python -m bench [--quick] [--only NAME] [--servers moldau,kafka] [--repeat N] [--json]`.

The scenarios of the load share one pair of servers, which take turns round by round, so that whatever else
the machine does meets both. The server whose turn it is not stays up and idle. Scenarios that stop or kill
their server get one of their own, again in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from confluent_kafka import KafkaException

from bench import machine, report
from bench.drive import ClientError, Drivers
from bench.metrics import KAFKA, MOLDAU, Outcome
from bench.scenarios import SCENARIOS, warm_up
from bench.scenarios.scenario import BOTH, FULL, QUICK, Bench, Phase, Scenario
from bench.servers import apache
from bench.servers.apache import ApacheKafka
from bench.servers.apache_cluster import KafkaCluster
from bench.servers.cluster import NODES, ServerCluster
from bench.servers.moldau_cluster import MoldauCluster
from bench.servers.moldau_server import Moldau
from bench.servers.server import ServerError, ServerProcess
from moldau.errors import KafkaError

RESULTS = Path(__file__).resolve().parent / "results"
SCRATCH = RESULTS / "scratch"

# By the number of brokers, then by name.
CLASSES: dict[int, dict[str, type[ServerProcess] | type[ServerCluster]]] = {
    1: {MOLDAU: Moldau, KAFKA: ApacheKafka},
    NODES: {MOLDAU: MoldauCluster, KAFKA: KafkaCluster},
}

# What a scenario may fail with without taking the run down: it is reported, and the others go on.
FAILURES = (ServerError, ClientError, KafkaException, KafkaError, AssertionError, OSError, RuntimeError)


class Run:
    """One run over the chosen scenarios and servers; collects outcomes and failures."""

    def __init__(
        self, bench: Bench, scenarios: Sequence[Scenario], servers: Sequence[str], cores: Sequence[int] | None
    ) -> None:
        self._bench = bench
        self._scenarios = scenarios
        self._names = servers
        self._cores = cores
        self._directory = SCRATCH / f"run-{os.getpid()}"
        self.outcomes = {metric.key: Outcome(metric) for each in scenarios for metric in each.metrics}
        self.failures: list[str] = []
        self.versions: dict[str, str] = {}

    def execute(self) -> None:
        try:
            for brokers in CLASSES:
                if any(each.brokers == brokers and each.phase is not Phase.ALONE for each in self._scenarios):
                    self._run_shared(brokers)
            self._run_alone()
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _of(self, phase: Phase, brokers: int) -> list[Scenario]:
        return [each for each in self._scenarios if each.phase is phase and each.brokers == brokers]

    @contextlib.contextmanager
    def _server(self, name: str, brokers: int, directory: str) -> Iterator[ServerProcess | ServerCluster]:
        server = CLASSES[brokers][name](self._directory / directory / name, cores=self._cores)
        self.versions[name] = server.version
        try:
            yield server
        finally:
            server.discard()

    def _run_shared(self, brokers: int) -> None:
        with contextlib.ExitStack() as stack:
            servers: list[ServerProcess | ServerCluster] = []
            for name in self._names:
                server = stack.enter_context(self._server(name, brokers, f"shared-{brokers}"))
                self._bench.say(f"{server.title} {server.version} starts")
                with self._reporting("start", server.title):
                    server.start()
                    servers.append(server)
            self._take_turns(self._of(Phase.IDLE, brokers), servers)
            # A server that cannot be warmed up can show nothing of load, its memory after none included.
            warm: list[ServerProcess | ServerCluster] = []
            for server in servers:
                self._bench.say(f"warm-up · {server.title}")
                with self._reporting("warm-up", server.title):
                    warm_up(self._bench, server)
                    warm.append(server)
            self._take_turns(self._of(Phase.LOAD, brokers), warm)
            self._take_turns(self._of(Phase.AFTER, brokers), warm)
            for server in servers:
                with self._reporting("stop", server.title):
                    server.stop()

    def _take_turns(self, scenarios: Sequence[Scenario], servers: Sequence[ServerProcess | ServerCluster]) -> None:
        for scenario in scenarios:
            rounds = scenario.rounds(self._bench.repeat)
            for number in range(rounds):
                # Who goes first changes, in case the first one pays for something.
                for server in servers if number % 2 == 0 else reversed(servers):
                    if server.name in scenario.servers:
                        self._measure(scenario, server, number, rounds)

    def _run_alone(self) -> None:
        for scenario in (each for each in self._scenarios if each.phase is Phase.ALONE):
            rounds = scenario.rounds(self._bench.repeat)
            for number in range(rounds):
                for name in self._names:
                    if name in scenario.servers:
                        with self._server(name, scenario.brokers, f"{scenario.name}-{number}") as server:
                            self._measure(scenario, server, number, rounds)

    def _measure(self, scenario: Scenario, server: ServerProcess | ServerCluster, number: int, rounds: int) -> None:
        self._bench.say(f"{scenario.name} · {server.title} · round {number + 1} of {rounds}")
        with self._reporting(scenario.name, server.title):
            for sample in scenario.run(self._bench, server):
                self.outcomes[sample.metric.key].add(sample.of or server.name, sample)

    @contextlib.contextmanager
    def _reporting(self, what: str, title: str) -> Iterator[None]:
        try:
            yield
        except FAILURES as error:
            self._bench.say(f"FAILED: {what} · {title}: {error}")
            # A traceback was shown above; its last line says what it was.
            last_line = (str(error).splitlines() or [repr(error)])[-1]
            self.failures.append(f"{what} · {title}: {last_line}")


def split_cores() -> tuple[list[int], list[int]]:
    """The cores of the brokers and those of the clients, for a pinned run."""
    cores = sorted(os.sched_getaffinity(0))
    half = max(len(cores) // 2, 1)
    return cores[:half], cores[half:] or cores


def talker() -> Callable[[str], None]:
    started = time.perf_counter()

    def say(line: str) -> None:
        print(f"[{time.perf_counter() - started:6.1f} s] {line}", file=sys.stderr, flush=True)

    return say


def choose(only: Sequence[str] | None, *, quick: bool = False) -> list[Scenario]:
    """The scenarios whose names begin with one of the given ones; without any, all that belong to such a run."""
    if not only:
        return [each for each in SCENARIOS if each.is_quick or not quick]
    chosen = [each for each in SCENARIOS if each.name.startswith(tuple(only))]
    if not chosen:
        names = ", ".join(each.name for each in SCENARIOS)
        sys.exit(f"no scenario is called {', '.join(only)}; there are: {names}")
    return chosen


def available(wanted: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The wanted servers that can run here; says why Apache Kafka is left out where it is."""
    if KAFKA not in wanted:
        return list(wanted)
    reason = apache.JARS.obstacle(say)
    if reason is None:
        return list(wanted)
    say(f"without Apache Kafka: {reason}; its columns and all ratios stay empty")
    return [name for name in wanted if name != KAFKA]


def without_obstacles(scenarios: Sequence[Scenario], say: Callable[[str], None]) -> list[Scenario]:
    """The scenarios that can run here; says which are left out, and why."""
    runnable: list[Scenario] = []
    for scenario in scenarios:
        reason = scenario.obstacle(say)
        if reason is None:
            runnable.append(scenario)
        else:
            say(f"without {scenario.name}: {reason}")
    return runnable


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Moldau against Apache Kafka, measured.")
    parser.add_argument("--only", action="append", metavar="NAME", help="scenarios whose name begins so")
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: not for quoting")
    parser.add_argument("--servers", default=",".join(BOTH), help="moldau, kafka or both (the default)")
    parser.add_argument("--repeat", type=int, help="rounds; medians are reported (default 3, quick 1)")
    parser.add_argument("--pin", action="store_true", help="brokers on half of the cores, clients on the rest")
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the table")
    parser.add_argument("--out", type=Path, help="folder for the JSON and the plot (default: bench/results)")
    parsed = parser.parse_args(arguments)
    parsed.servers = parsed.servers.split(",")
    if unknown := set(parsed.servers) - set(BOTH):
        parser.error(f"unknown server: {', '.join(sorted(unknown))}")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parse_arguments(arguments)
    # The brokers are in sessions of their own: whoever ends the run must give it the time to end them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    say = talker()
    servers = available(asked.servers, say)
    if not servers:
        return 1
    facts = machine.facts()
    neighbours = machine.Neighbours()
    sizes = QUICK if asked.quick else FULL
    repeat = asked.repeat or (1 if asked.quick else 3)
    broker_cores, client_cores = split_cores() if asked.pin else (None, None)
    bench = Bench(Drivers(client_cores, say), sizes, repeat, say)
    scenarios = without_obstacles(choose(asked.only, quick=asked.quick), say)
    run = Run(bench, scenarios, servers, broker_cores)
    run.execute()
    facts["cores_taken_by_others"] = round(neighbours.cores(), 2)
    settings = {"quick": asked.quick, "repeat": repeat, "pinned": asked.pin, "sizes": asdict(sizes)}
    outcomes = list(run.outcomes.values())
    results = report.as_json(
        outcomes,
        scenarios,
        machine=facts,
        versions=run.versions,
        settings=settings,
        failures=run.failures,
    )
    # Only a whole, full run may replace the results that are kept.
    is_whole = not asked.quick and not asked.only and set(servers) == set(BOTH) and not run.failures
    folder = asked.out or (RESULTS if is_whole else SCRATCH)
    report.write(folder, results, outcomes, say)
    if asked.json:
        report.print_json(results)
    else:
        report.print_tables(outcomes, results)
    return 1 if run.failures else 0
