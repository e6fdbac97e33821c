"""Runs the rounds, prints the figures; exit code 1 when something acknowledged was lost, doubled or disordered."""

from __future__ import annotations

import argparse
import logging
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from soak.broker_process import BrokerProcess
from soak.exactly_once import run_exactly_once
from soak.queue import run_queue
from soak.rounds import Round, run_rounds

SPARK_KILLS = 20
EXAMPLE_KILLS = 5  # of each round


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    seed = random.SystemRandom().randrange(2**32) if arguments.seed is None else arguments.seed
    print(f"seed {seed}")
    for client in ("kafka", "aiokafka"):
        # That a broker is away now and then is the point; what a client gives up on is counted.
        logging.getLogger(client).setLevel(logging.CRITICAL)
    # What a run has started is in sessions of its own: whoever ends the run must give it the time to end it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    others = _other_run(arguments, seed)
    return _broker_run(arguments, seed) if others is None else others()


def _other_run(arguments: argparse.Namespace, seed: int) -> Callable[[], int] | None:
    """Runs that start their own brokers."""
    if arguments.cluster_jobs is not None:
        return partial(_cluster_jobs, arguments.cluster_jobs)
    if arguments.cluster:
        return partial(_cluster, seed, arguments)
    if arguments.hosts is not None:
        return partial(_hosts, arguments.hosts, seed, is_apache=arguments.apache)
    return partial(_examples, arguments.examples, seed) if arguments.examples else None


def _broker_run(arguments: argparse.Namespace, seed: int) -> int:
    with (
        tempfile.TemporaryDirectory(prefix="moldau-soak-") as folder,
        BrokerProcess(Path(folder), log_level="WARNING") as broker,
    ):
        if arguments.exactly_once:
            return _exactly_once(broker, arguments.exactly_once, seed)
        if arguments.queue:
            return _queue(broker, arguments.queue, seed)
        if arguments.pipeline:
            return _pipeline(broker, arguments.pipeline)
        if arguments.spark:
            return _spark(broker, arguments.spark, seed, "foreachBatch" if arguments.foreach_batch else "stream")
        return _rounds(broker, arguments.rounds, seed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m soak", description="Hard kills under load, round after round.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="of the moments of the kills; default: a new one")
    parser.add_argument(
        "--exactly-once", type=int, default=0, metavar="RECORDS", help="copy so many in transactions, instead of rounds"
    )
    parser.add_argument(
        "--queue", type=int, default=0, metavar="RECORDS", help="so many for a share group, instead of rounds"
    )
    parser.add_argument(
        "--spark",
        type=int,
        default=0,
        metavar="RECORDS",
        help="copied by a Spark query over 20 kills, instead of rounds",
    )
    parser.add_argument(
        "--pipeline", type=float, default=0, metavar="SECONDS", help="of a pipeline at a steady rate, instead of rounds"
    )
    parser.add_argument(
        "--examples",
        type=int,
        default=0,
        metavar="ROUNDS",
        help=f"of all example pipelines over {EXAMPLE_KILLS} kills each, instead of rounds",
    )
    parser.add_argument("--foreach-batch", action="store_true", help="the query of --spark writes with batch_sink")
    parser.add_argument(
        "--cluster",
        type=float,
        default=0,
        metavar="SECONDS",
        help="of mixed faults on three brokers, instead of rounds",
    )
    parser.add_argument("--interval", type=float, default=15.0, metavar="SECONDS", help="of the faults of --cluster")
    parser.add_argument("--zookeeper", metavar="HOST:PORT,…", help="for the metadata of --cluster")
    parser.add_argument("--faults", nargs="+", metavar="FAULT", help="of --cluster; default: all")
    parser.add_argument(
        "--cluster-jobs", nargs="*", metavar="JOB", help="one fault of three brokers after the other, instead of rounds"
    )
    parser.add_argument(
        "--hosts",
        nargs="*",
        metavar="FAULT",
        help="of three hosts that vanish (network namespaces), instead of rounds; default: all",
    )
    parser.add_argument("--apache", action="store_true", help="--hosts on Apache Kafka, to compare")
    return parser


def _rounds(broker: BrokerProcess, rounds: int, seed: int) -> int:
    result = run_rounds(broker, rounds=rounds, seed=seed, report=_print_round)
    broker.stop()
    for client, count in result.acked.items():
        print(f"{client:>16}: {count:>10,} acknowledged")
    print(f"{result.findings.records:,} records read back, {len(result.findings.problems)} problems")
    return _verdict(broker, result.findings.problems)


def _exactly_once(broker: BrokerProcess, records: int, seed: int) -> int:
    outcome = run_exactly_once(broker, records=records, seed=seed, report=lambda line: print(line, flush=True))
    print(
        f"{outcome.records:,} records read in {outcome.elapsed_s:.0f} s, over {outcome.broker_kills} kills of the "
        f"broker and {outcome.copier_kills} of copiers; {len(outcome.problems)} problems"
    )
    return _verdict(broker, outcome.problems)


def _queue(broker: BrokerProcess, records: int, seed: int) -> int:
    outcome = run_queue(broker, records=records, seed=seed, report=lambda line: print(line, flush=True))
    print(
        f"{outcome.accepted:,} records accepted, {outcome.unconfirmed:,} more without an answer, in "
        f"{outcome.elapsed_s:.0f} s, over {outcome.broker_kills} kills of the broker and {outcome.worker_kills} of "
        f"workers; {len(outcome.problems)} problems"
    )
    return _verdict(broker, outcome.problems)


def _spark(broker: BrokerProcess, records: int, seed: int, into: str) -> int:
    from soak.spark_copy import run_spark_copy  # needs what the others do not: psutil and Spark

    outcome = run_spark_copy(
        broker,
        records=records,
        kills_min=SPARK_KILLS,
        seed=seed,
        into=into,
        report=lambda line: print(line, flush=True),
    )
    print(
        f"{outcome.records:,} records read in {outcome.elapsed_s:.0f} s, over kills of {dict(outcome.kills)}; "
        f"{len(outcome.problems)} problems"
    )
    return _verdict(broker, outcome.problems)


def _pipeline(broker: BrokerProcess, seconds: float) -> int:
    from soak.pipeline import JUDGED_S_MIN, run_pipeline  # needs psutil and Spark

    outcome = run_pipeline(broker, seconds=seconds, report=lambda line: print(line, flush=True))
    sizes = [
        f"{kind} {samples[-1][1]:.0f} MB, {outcome.slope(kind):+.2f} MB per minute"
        for kind, samples in outcome.samples.items()
    ]
    print(
        f"{outcome.clicks:,} clicks in {seconds:.0f} s, {outcome.counted:,} counted; memory: {'; '.join(sizes)}; "
        f"{len(outcome.problems)} problems"
    )
    if seconds < JUDGED_S_MIN:
        print(f"too short to say whether memory is flat: that takes {JUDGED_S_MIN:.0f} s")
    return _verdict(broker, outcome.problems)


def _examples(rounds: int, seed: int) -> int:
    from soak.example_kills import run_examples  # needs psutil and Spark

    for number in range(seed, seed + rounds):
        with tempfile.TemporaryDirectory(prefix="moldau-soak-examples-") as folder:
            outcome = run_examples(
                Path(folder), kills=EXAMPLE_KILLS, seed=number, report=lambda line: print(line, flush=True)
            )
        print(
            f"seed {number}: {outcome.rows:,} rows of all examples compared in {outcome.elapsed_s:.0f} s, killed after "
            f"{', '.join(map(str, outcome.kills))} micro-batches; {len(outcome.problems)} problems",
            flush=True,
        )
        for problem in outcome.problems[:50]:
            print(f"  {problem}")
        if outcome.problems:
            return 1
    return 0


def _cluster(seed: int, arguments: argparse.Namespace) -> int:
    from soak.cluster_faults import FAULTS
    from soak.cluster_run import Schedule, brokers, run_mixed_faults

    interval_s = arguments.interval
    schedule = Schedule(interval_s, (interval_s / 15, interval_s * 0.8), arguments.faults or tuple(FAULTS))
    with brokers(zookeeper=arguments.zookeeper) as (cluster, network):
        result = run_mixed_faults(
            cluster,
            network,
            duration_s=arguments.cluster,
            seed=seed,
            schedule=schedule,
            report=lambda line: print(line, flush=True),
        )
        history = result.history
        print(
            f"{history.operations:,} operations in {result.elapsed_s:.0f} s, writes {dict(history.outcomes())}, "
            f"{len(history.transactions):,} transactions, over {result.faults.total()} faults; longest time without "
            f"an acknowledgement {result.longest_gap_s:.2f} s; {len(result.problems)} anomalies (seed {seed})"
        )
        for problem in result.problems[:50]:
            print(f"  {problem}")
        if result.problems:
            raise SystemExit(1)
    return 0


def _cluster_jobs(names: Sequence[str]) -> int:
    from soak.cluster_jobs import JOBS
    from soak.cluster_run import brokers

    failed = 0
    for name in names or JOBS:
        with brokers() as (cluster, network):
            outcome = JOBS[name](cluster, network)
            figures = ", ".join(f"{what} {value}" for what, value in outcome.figures.items())
            print(f"{name:>20}: {figures}; {len(outcome.problems)} problems", flush=True)
            for problem in outcome.problems[:20]:
                print(f"  {problem}")
            failed += bool(outcome.problems)
    return 1 if failed else 0


def _hosts(names: Sequence[str], seed: int, *, is_apache: bool) -> int:
    from soak.hosts import obstacle
    from soak.hosts_run import FAULTS, run_faults, running

    if why := obstacle():
        print(f"hosts that vanish: left out, {why}")
        return 0
    with running(apache=is_apache) as cluster:
        print(f"{cluster.name} on three hosts; seconds in which nothing was acknowledged:")
        _, problems = run_faults(
            cluster, names or tuple(FAULTS), seed=seed, report=lambda line: print(line, flush=True)
        )
        print(f"{len(problems)} problems")
        for problem in problems[:50]:
            print(f"  {problem}")
        if problems:
            raise SystemExit(1)
    return 0


def _verdict(broker: BrokerProcess, problems: Sequence[str]) -> int:
    for problem in problems[:50]:
        print(f"  {problem}")
    output = broker.output()
    failed = "Traceback" in output
    if failed:
        print(output[-10_000:], file=sys.stderr)
    return 1 if problems or failed else 0


def _print_round(done: Round) -> None:
    print(
        f"round {done.number:>4}: {done.acked:>10,} acknowledged, restart {done.restart_s * 1000:>5.0f} ms, "
        f"longest gap {done.longest_gap_s:.2f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
