"""`moldau pipeline lint`: everything that is wrong with files, found without Spark and without a broker."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.cli.common import EXIT_FAILED, CommandParser, print_json, run, styled
from moldau.pipelines.doors.yaml_file import pipeline_files, read_pipelines
from moldau.pipelines.model.places import Problem, Severity


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline lint") -> int:
    parser = CommandParser(
        prog,
        "Check pipeline files and print what is wrong, with file, line and column. No Spark and no broker is started,\n"
        "so columns and most of SQL are left to `dry-run` and `test`.\n"
        "Exits with 1 if there is a problem; warnings do not count.",
        "{prog} page-counts.yaml\n{prog} pipelines/ --json",
    )
    parser.add_argument("paths", nargs="*", metavar="FILE|DIR", default=["."], help="files or folders (default: .)")
    parser.add_json()
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _lint(arguments.paths, is_json=arguments.json))


def _lint(paths: Sequence[str], *, is_json: bool) -> int:
    files = pipeline_files(paths)
    _, problems = read_pipelines(files)
    if is_json:
        print_json([_as_json(problem) for problem in problems])
    else:
        for problem in problems:
            print(problem)
        print(f"{_summary(problems, len(files))}; columns and SQL are checked by `dry-run` and `test`")
    return EXIT_FAILED if any(problem.severity is Severity.ERROR for problem in problems) else 0


def _as_json(problem: Problem) -> dict[str, object]:
    place = problem.place
    return {
        "file": place.file if place else None,
        "line": place.line if place else None,
        "column": place.column if place else None,
        "severity": problem.severity.value,
        "message": problem.message,
    }


def _summary(problems: Sequence[Problem], files: int) -> str:
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    counts = [_counted(errors, "problem") if errors else "no problems"]
    if len(problems) > errors:
        counts.append(_counted(len(problems) - errors, "warning"))
    return styled(f"{' and '.join(counts)} in {_counted(files, 'file')}", "31" if errors else "32")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
