"""What `moldau pipeline dry-run` prints."""

from __future__ import annotations

from moldau.cli.pipelines.dry_run import _lines
from moldau.pipelines.engine.dry_run import QueryReport


def test_a_problem_of_several_queries_is_printed_once() -> None:
    wrong = ["p.yaml:4:8: step s: column `m` cannot be resolved."]
    told: set[tuple[str, str]] = set()
    lines = [
        list(_lines(QueryReport("p", query, "", problems=[*wrong, *more]), told))
        for query, more in (("a", []), ("b", ["sink b: no broker"]), ("a-dead-letters", []))
    ]
    assert lines == [
        ["p.a: cannot run", f"  problem: {wrong[0]}"],
        ["p.b: cannot run (see above)", "  problem: sink b: no broker"],
        ["p.a-dead-letters: cannot run (see above)"],
    ]
    assert list(_lines(QueryReport("q", "a", "", problems=wrong), told))[1:] == [f"  problem: {wrong[0]}"]
