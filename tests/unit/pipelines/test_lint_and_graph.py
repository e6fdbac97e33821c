"""The commands that need no Spark: init, lint and graph."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from moldau.cli.main import main
from moldau.cli.pipelines.main import VERBS
from moldau.pipelines.doors.yaml_file import load_pipeline

FILES = Path(__file__).parent / "bad_files"
GOOD = FILES / "good.yaml"
REST = "; columns and SQL are checked by `dry-run` and `test`"


def call(*argv: str) -> int:
    try:
        return main(["pipeline", *argv])
    except SystemExit as exit_:
        return int(exit_.code or 0)


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.yaml"
    path.write_text("sources:\n  a: {connector: topc}\nsinks: 7\n")
    return path


def test_lint_prints_every_problem_with_its_place_and_fails(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("lint", str(bad), str(GOOD)) == 1
    first, summary = capsys.readouterr().out.splitlines()
    assert first == f"{bad}:3:8: sinks: expected a mapping of names, not 7"
    assert summary == f"1 problem in 2 files{REST}"


def test_lint_of_good_files_succeeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("lint", str(FILES)) == 0
    assert capsys.readouterr().out == f"no problems in 1 file{REST}\n"


def test_lint_prints_json_for_programs(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("lint", str(bad), "--json") == 1
    (problem,) = json.loads(capsys.readouterr().out)
    assert problem == {
        "file": str(bad),
        "line": 3,
        "column": 8,
        "severity": "error",
        "message": "sinks: expected a mapping of names, not 7",
    }


def test_warnings_do_not_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("sources:\n  a: {connector: topic, topic: a}\n")
    assert call("lint", str(path)) == 0
    assert capsys.readouterr().out == (
        f"{path}:1:1: warning: the pipeline has no sinks: it writes nothing\n"
        f"no problems and 1 warning in 1 file{REST}\n"
    )
    assert call("run", str(path)) == 2
    message = "pipeline a has no sinks, so it would write nothing: add `sinks` to the file"
    assert capsys.readouterr().err == f"moldau pipeline run: {path}:1:1: {message}\n"


def test_two_pipelines_in_a_folder_have_two_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "name: same\nsources:\n  a: {connector: topic, topic: a}\nsinks:\n  b: {connector: topic, topic: b}\n"
    for name in ("one.yaml", "two.yaml"):
        (tmp_path / name).write_text(text)
    assert call("lint", str(tmp_path)) == 1
    assert f"two.yaml:1:7: there is another pipeline 'same', in {tmp_path}/one.yaml" in capsys.readouterr().out


def test_other_commands_print_the_problems_of_a_file_one_per_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("sources: 3\nsteps: 4\n")
    assert call("graph", str(path)) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"{path}:1:10: sources: expected a mapping of names, not 3",
        f"{path}:2:8: steps: expected a mapping of names, not 4",
    ]


def test_the_graph_is_a_tree_for_each_sink(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("graph", str(GOOD)) == 0
    assert (
        capsys.readouterr().out
        == """\
page-counts

page_counts → topic page-counts, append, exactly once
└── marked  Python my_steps:mark
    └── counts  SQL
        └── visits  SQL
            ├── clicks  ← topic clicks, watermark at 1 minute, expect has_page or dead-letter
            └── users  ← generator

visits_out → topic visits, append, exactly once
└── visits  (see above)

dead letters → topic page-counts-dead-letters
"""
    )


def test_the_graph_is_a_flowchart_for_mermaid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text(
        "sources:\n  a: {connector: topic, subscribePattern: 'x\"<#>'}\nsinks:\n  b: {connector: topic, topic: b}\n"
    )
    assert call("graph", str(tmp_path), "--format", "mermaid") == 0
    assert (
        capsys.readouterr().out
        == """\
flowchart LR
  view_a[("a<br/>topic x#quot;#lt;#35;#gt;")]
  sink_b[/"b<br/>topic b"/]
  view_a --> sink_b
"""
    )


def test_init_writes_a_good_file_and_never_overwrites_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("init", str(tmp_path / "my counts")) == 0
    assert "pipeline run" in capsys.readouterr().out
    path = tmp_path / "my counts.yaml"
    assert load_pipeline(path).name == "my-counts"
    assert call("lint", str(tmp_path)) == 0
    assert capsys.readouterr().out == f"no problems in 1 file{REST}\n"
    path.write_text("mine")
    assert call("init", str(path)) == 1
    assert "exists and was left as it is" in capsys.readouterr().err
    assert path.read_text() == "mine"


@pytest.mark.parametrize("command", ["lint", "graph"])
def test_lint_and_graph_load_neither_spark_nor_arrow(command: str) -> None:
    code = (
        "import sys\nfrom moldau.cli.main import main\n"
        f"code = main(['pipeline', {command!r}, {str(GOOD)!r}])\n"
        "loaded = {'pyspark', 'pyarrow', 'numpy', 'numba', 'confluent_kafka', 'rich'} & set(sys.modules)\n"
        "sys.exit(f'loaded {loaded}' if loaded else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_unknown_verb_suggests_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("lnt") == 2
    assert "unknown command 'lnt' (did you mean 'lint'?)" in capsys.readouterr().err


def test_the_help_lists_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    text = capsys.readouterr().out
    assert [verb for verb in VERBS if f"  {verb} " not in text] == []


@pytest.mark.parametrize("text", ["import sys\nsys.exit(3)", "1 / 0", "def x(:", "raise KeyboardError"])
def test_a_connector_that_cannot_be_imported_is_a_problem_of_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    module = f"connector_{abs(hash(text))}"
    (tmp_path / f"{module}.py").write_text(text)
    path = tmp_path / "a.yaml"
    path.write_text(f"sources:\n  a:\n    connector: {module}:Mine\n")
    assert call("lint", str(path)) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"{path}:3:16: source a: connector '{module}:Mine': cannot import module '{module}'")


def test_the_graph_says_which_sinks_share_a_query(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "sources:\n  a: {connector: topic, topic: a, format: json, schema: k INT}\n"
        "steps:\n  n: {sql: 'SELECT k, count(*) AS n FROM a GROUP BY k'}\n"
        "sinks:\n  b: {connector: topic, topic: b, mode: update}\n  c: {connector: console, mode: update}\n"
        "  d: {connector: lines, path: d.txt, mode: update}\n"
    )
    assert call("graph", str(path)) == 0
    assert capsys.readouterr().out.endswith("\n\nb, d share a query, which keeps the state of n once\n")
