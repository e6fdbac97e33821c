"""What a run leaves behind: a table for the terminal, JSON for machines, a plot (`plot.py`) for readers."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import plot
from bench.metrics import KAFKA, MOLDAU, Outcome, Verdict
from bench.scenarios.scenario import Scenario
from bench.stats import number

STYLES = {
    Verdict.MET: "green",
    Verdict.CLIENT_BOUND: "green",
    Verdict.MISSED: "bold red",
    Verdict.NOT_MEASURED: "yellow",
    Verdict.NO_GOAL: "dim",
}

# What a desktop or a fresh server takes when nobody uses it is well below.
QUIET_CORES = 0.15
SPARK_TITLE = "Moldau's Spark source against Spark's Kafka connector"
PIPELINES_TITLE = "Pipelines against the same jobs by hand with Spark's Kafka connector, and Kafka Streams"
QUICK_NOTE = " · quick: smaller than the titles say, not for quoting"


def measured(outcome: Outcome, server: str) -> str:
    """A median with its spread, `*` where the client was the limit."""
    value = outcome.median(server)
    if value is None:
        return "–"
    text = f"{number(value)} {outcome.metric.unit}".rstrip()
    if len(outcome.values(server)) > 1:
        text += f" ±{outcome.spread_percent(server):.0f} %"
    return text + (" *" if outcome.is_client_bound(server) else "")


def of_brokers(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.metric.rival == KAFKA]


def of_spark(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if outcome.metric.rival != KAFKA and not _is_of_pipelines(outcome)]


def of_pipelines(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [outcome for outcome in outcomes if _is_of_pipelines(outcome)]


def _is_of_pipelines(outcome: Outcome) -> bool:
    return outcome.metric.key.startswith("pipeline_") and outcome.metric.rival != KAFKA


def table(title: str, rival: str, outcomes: Iterable[Outcome]) -> Table:
    grid = Table(title=title, title_justify="left", header_style="bold")
    grid.add_column("metric")
    for heading in ("Moldau", rival, "ratio", "goal"):
        grid.add_column(heading, justify="right")
    grid.add_column("verdict")
    for outcome in outcomes:
        metric, verdict = outcome.metric, outcome.verdict
        grid.add_row(
            metric.title,
            measured(outcome, MOLDAU),
            measured(outcome, metric.rival),
            f"{outcome.ratio:.2f}" if outcome.ratio is not None else "–",
            metric.goal_text or "",
            f"[{STYLES[verdict]}]{'' if verdict is Verdict.NO_GOAL else verdict.value}[/]",
        )
    return grid


def print_tables(outcomes: Sequence[Outcome], results: Mapping[str, Any]) -> None:
    # A pipe has no width; the table would be folded into confetti.
    console = Console() if sys.stdout.isatty() else Console(width=160)
    if brokers := of_brokers(outcomes):
        console.print(table("Moldau against Apache Kafka", "Kafka", brokers))
        console.print("* client-bound: the client's core was full while the broker had room", style="dim")
    if spark := of_spark(outcomes):
        console.print(table(SPARK_TITLE, "JVM", spark))
    if pipelines := of_pipelines(outcomes):
        console.print(table(PIPELINES_TITLE, "the other", pipelines))
    console.print(summary(results))
    for failure in results["failures"]:
        console.print(f"failed: {failure}", style="bold red", markup=False)


def summary(results: Mapping[str, Any]) -> str:
    """One line: where, when and with what."""
    machine, settings = results["machine"], results["settings"]
    versions = " against ".join(f"{name} {version}" for name, version in results["servers"].items())
    return (
        f"{versions} · {machine['cores']} cores, {machine['memory_gb']} GB, {machine['cpu']} · "
        f"librdkafka {machine['librdkafka']} · Python {machine['python']} · {machine['date'][:10]} · "
        f"median of {settings['repeat']}{QUICK_NOTE if settings['quick'] else ''}{busy_note(machine)}"
    )


def busy_note(machine: Mapping[str, Any]) -> str:
    others: float = machine["cores_taken_by_others"]
    return f" · a busy machine: others took {others:g} cores" if others >= QUIET_CORES else ""


def as_json(
    outcomes: Iterable[Outcome],
    scenarios: Sequence[Scenario],
    *,
    machine: Mapping[str, object],
    versions: Mapping[str, str],
    settings: Mapping[str, object],
    failures: Sequence[str],
) -> dict[str, Any]:
    how = {metric.key: inspect.getdoc(each) for each in scenarios for metric in each.metrics}
    return {
        "machine": dict(machine),
        "servers": dict(versions),
        "settings": dict(settings),
        "failures": list(failures),
        "metrics": [_outcome_as_json(outcome, how.get(outcome.metric.key)) for outcome in outcomes],
    }


def _outcome_as_json(outcome: Outcome, how: str | None) -> dict[str, Any]:
    metric = outcome.metric
    return {
        "key": metric.key,
        "title": metric.title,
        "how": how,
        "unit": metric.unit,
        "better": metric.better,
        "goal": metric.goal_text,
        "rival": metric.rival,
        "verdict": outcome.verdict.value,
        "ratio": outcome.ratio,
        "servers": {
            server: {
                "median": outcome.median(server),
                "spread_percent": round(outcome.spread_percent(server), 1),
                "client_bound": outcome.is_client_bound(server),
                "samples": outcome.values(server),
            }
            for server in outcome.samples
        },
    }


def write(folder: Path, results: Mapping[str, Any], outcomes: Sequence[Outcome], say: Callable[[str], None]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    json_path = folder / "results.json"
    json_path.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")
    say(f"wrote {json_path}")
    for name, title, rows in (
        ("results.png", "Moldau, times better than Apache Kafka", of_brokers(outcomes)),
        ("spark.png", "Moldau's Spark source, times better than Spark's Kafka connector", of_spark(outcomes)),
        ("pipelines.png", "Pipelines, times better than the same jobs by hand", of_pipelines(outcomes)),
    ):
        compared = [outcome for outcome in rows if outcome.times_better is not None]
        if compared:
            plot.draw(folder / name, title, compared, summary(results))
            say(f"wrote {folder / name}")


def print_json(results: Mapping[str, Any]) -> None:
    print(json.dumps(results, indent=2, ensure_ascii=False))
