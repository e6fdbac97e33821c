"""`moldau pipeline test`: the given/expect tests of pipelines, in one Spark session and without a broker."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from moldau.cli.common import EXIT_FAILED, CommandParser, at_terminal, print_json, run, styled
from moldau.errors import ConfigError, InvalidPipelineError
from moldau.pipelines.doors.yaml_file import load_pipeline, pipeline_files

if TYPE_CHECKING:
    from moldau.pipelines.engine.cases import CaseResult
    from moldau.pipelines.model.pipeline import Case, Pipeline

_GREEN, _RED, _DIM = "32", "31", "2"


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline test") -> int:
    parser = CommandParser(
        prog,
        "Run the tests of pipeline files: rows that sources are given, rows that views or sinks must then have. They "
        "run in one local Spark session and need no broker. The exit code is 1 if a test fails.",
        "{prog} page-counts.yaml\n{prog} pipelines/ --filter 'late rows'",
    )
    parser.add_argument("paths", nargs="+", metavar="FILE|DIR", help="pipeline files, or folders of them")
    parser.add_argument("--filter", metavar="TEXT", help="run only tests with this text in `pipeline: test`")
    parser.add_json()
    args = parser.parse_args(argv)
    return run(prog, lambda: _test(args))


def _test(args: argparse.Namespace) -> int:
    started = time.monotonic()
    cases = _cases(args.paths, args.filter)
    import moldau.spark

    with _Waiting("starting Spark"):
        spark = moldau.spark.session("moldau-tests", short_job=True)
        from moldau.pipelines.engine.cases import run_cases
        from moldau.pipelines.engine.session import silence

    silence(spark)  # a test that fails says why
    results = []
    for result in _with_progress(run_cases(spark, cases), len(cases)):
        results.append(result)
        if not args.json:
            _print(result)
    failed = sum(not result.has_passed for result in results)
    if args.json:
        print_json([_as_json(result) for result in results])
    else:
        _print_summary(len(results), failed, time.monotonic() - started)
    return EXIT_FAILED if failed else 0


def _cases(paths: Sequence[str], text: str | None) -> list[tuple[Pipeline, Case]]:
    """All files are read before Spark starts, and all that is wrong with them is said at once."""
    pipelines: list[Pipeline] = []
    problems: list[object] = []
    for path in pipeline_files(paths):
        try:
            pipelines.append(load_pipeline(path))
        except InvalidPipelineError as error:
            problems += error.problems
    if problems:
        raise InvalidPipelineError(problems)
    cases = [(pipeline, case) for pipeline in pipelines for case in pipeline.tests]
    if not cases:
        raise ConfigError(f"no tests in {', '.join(paths)}: add `tests` with `given` and `expect` rows")
    chosen = [pair for pair in cases if text is None or text.lower() in _title(*pair).lower()]
    if not chosen:
        raise ConfigError(f"none of the {len(cases)} tests has '{text}' in its name")
    return chosen


def _title(pipeline: Pipeline, case: Case) -> str:
    return f"{pipeline.name}: {case.name}"


def _print(result: CaseResult) -> None:
    word = styled("passed", _GREEN) if result.has_passed else styled("FAILED", _RED)
    took = styled(f"({result.seconds:.2f} s)", _DIM)
    print(f"{word}  {_title(result.pipeline, result.case)}  {took}", flush=True)
    for failure in result.failures:
        print(f"    {failure}", flush=True)


def _print_summary(tests: int, failed: int, seconds: float) -> None:
    noun = "test" if tests == 1 else "tests"
    text = f"{failed} of {tests} {noun} failed" if failed else f"{tests} {noun} passed"
    print(f"{styled(text, _RED if failed else _GREEN)} in {seconds:.1f} s")


def _as_json(result: CaseResult) -> dict[str, Any]:
    return {
        "pipeline": result.pipeline.name,
        "file": result.pipeline.file,
        "test": result.case.name,
        "line": result.case.place.line if result.case.place else None,
        "passed": result.has_passed,
        "seconds": round(result.seconds, 3),
        "failures": [
            {
                "view": failure.target,
                "kind": failure.kind,
                "message": failure.message,
                "line": failure.place.line if failure.place else None,
            }
            for failure in result.failures
        ],
    }


class _Waiting:
    """What is being waited for, shown in a terminal until it is done."""

    def __init__(self, text: str) -> None:
        self.text = f"{text} …" if at_terminal() else ""

    def __enter__(self) -> None:
        if self.text:
            sys.stdout.write(styled(self.text, _DIM))
            sys.stdout.flush()

    def __exit__(self, *_: object) -> None:
        if self.text:
            sys.stdout.write("\r\033[K")
            sys.stdout.flush()


def _with_progress(results: Iterable[CaseResult], total: int) -> Iterator[CaseResult]:
    done, iterator = 0, iter(results)
    while True:
        with _Waiting(f"{done} of {total}"):
            result = next(iterator, None)
        if result is None:
            return
        done += 1
        yield result
