"""A YAML file becomes a pipeline; what is wrong with it is said with line and column."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from moldau.errors import ConfigError, InvalidPipelineError
from moldau.pipelines.doors.yaml_file import load_pipeline, pipeline_files, read_pipeline
from moldau.pipelines.doors.yaml_nodes import DEPTH_MAX, FILE_BYTES_MAX
from moldau.pipelines.model.pipeline import Action

PAGE_COUNTS = """\
name: page-counts
sources:
  clicks:
    connector: topic
    topic: clicks
    format: json
    schema: page STRING, at TIMESTAMP
    watermark: at 1 minute
steps:
  counts:
    sql: |
      SELECT window.start AS minute, page, count(*) AS views
      FROM clicks
      GROUP BY window(at, '1 minute'), page
sinks:
  page_counts:
    connector: topic
    topic: page-counts
    key: page
expect:
  has_page:
    view: clicks
    condition: page IS NOT NULL
    action: dead-letter
tests:
  - name: counts per minute
    given:
      clicks:
        - {page: /a, at: 2026-01-01 00:00:10}
        - {page: /a, at: 2026-01-01 00:00:20}
    expect:
      counts:
        - {page: /a, views: 2}
settings:
  trigger: 1 second
  dead letters: page-counts-dead-letters
  spark: {spark.sql.shuffle.partitions: 4}
  kafka.bootstrap.servers: ${env:KAFKA:localhost:9092}
"""


def write(folder: Path, text: str, name: str = "counts.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text), "utf-8")
    return path


def problems(folder: Path, text: str) -> list[str]:
    """What is wrong with a file, without the folder in front."""
    _, found = read_pipeline(write(folder, text))
    return [str(problem).removeprefix(f"{folder}/") for problem in found]


def test_a_file_becomes_a_pipeline(tmp_path: Path) -> None:
    pipeline = load_pipeline(write(tmp_path, PAGE_COUNTS))
    (source,), (step,), (sink,), (expectation,), (case,) = (
        pipeline.sources,
        pipeline.steps,
        pipeline.sinks,
        pipeline.expectations,
        pipeline.tests,
    )
    assert pipeline.name == "page-counts"
    assert pipeline.folder == tmp_path
    assert (source.connector, source.options["watermark"].value) == ("topic", "at 1 minute")
    assert step.inputs == ("clicks",)
    assert str(step.text_place).endswith("counts.yaml:12:7")
    assert (sink.view, sink.mode, sink.options["key"].value) == ("counts", "append", "page")
    assert (expectation.view, expectation.action) == ("clicks", Action.DEAD_LETTER)
    first, second = case.given["clicks"][0]
    assert first == {"page": "/a", "at": "2026-01-01 00:00:10"}
    assert second["page"] == "/a"
    assert case.expect == {"counts": ({"page": "/a", "views": 2},)}
    assert pipeline.settings["spark"].value == {"spark.sql.shuffle.partitions": 4}


def test_the_name_is_that_of_the_file_if_none_is_given(tmp_path: Path) -> None:
    assert load_pipeline(write(tmp_path, PAGE_COUNTS.partition("\n")[2], "page.counts.yaml")).name == "page.counts"


def test_lists_of_lists_are_micro_batches(tmp_path: Path) -> None:
    text = PAGE_COUNTS.replace("        - {page: /a, at:", "        - - {page: /a, at:")
    (case,) = load_pipeline(write(tmp_path, text)).tests
    assert [len(batch) for batch in case.given["clicks"]] == [1, 1]


def test_inputs_of_a_function_are_its_parameters_and_it_is_not_imported(tmp_path: Path) -> None:
    write(tmp_path, "raise SystemExit\n\ndef mark(counts, spark, limit=3): ...\n", "my_steps.py")
    text = PAGE_COUNTS.replace("sinks:", "  marked:\n    python: my_steps:mark\nsinks:")
    pipeline = load_pipeline(write(tmp_path, text))
    assert pipeline.steps[1].inputs == ("counts", "spark")
    assert pipeline.sinks[0].view == "marked"


def test_every_problem_is_reported_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
        souces: {}
        steps:
          a: {sql: SELECT 1, python: x:y}
        sinks:
          out: {conector: console}
        expect:
          ok: {view: a, condition: x, action: dropp}
        """
    assert problems(tmp_path, text) == [
        "counts.yaml:1:1: a pipeline has no 'souces': did you mean 'sources'?",
        "counts.yaml:3:3: step a needs either `sql` or `python`: it has both",
        "counts.yaml:5:9: sink out has no 'conector': did you mean 'connector'?",
        "counts.yaml:7:39: expectation ok has no action 'dropp': did you mean 'drop'?",
    ]


def test_an_error_carries_all_problems_and_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError) as raised:
        load_pipeline(write(tmp_path, "steps: 3\nsinks: []\n"))
    assert isinstance(raised.value, ConfigError)
    assert len(raised.value.problems) == 2
    assert str(raised.value).count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: yes", "1:7: 'yes' is true in YAML 1.1 and text in YAML 1.2: write true, or \"yes\""),
        ("On: 1", "1:1: 'On' is true in YAML 1.1"),
        ("settings: {a: 010}", "1:15: 010 is not the same number in YAML 1.1 and 1.2"),
        ("settings: {a: 1_000}", "1:15: 1_000 is not the same number"),
        ("name: !!python/object:os.system x", "1:7: tags are not supported: remove !!python/object:os.system"),
        ("name: a\nname: b", "2:1: duplicate key 'name': the first is in line 1"),
        ("name: a\n---\nname: b", "2:1: a file holds one pipeline"),
        ("? [a]\n: b", "1:3: a key must be text, not a list"),
        ("sources: &a {}\nsettings:\n  <<: *a", "3:3: merge keys (`<<`) are not supported"),
        ("a: &a [*a]", "1:8: the alias *a is inside of what it stands for"),
        ("a: *b", "1:4: there is no anchor &b before this alias"),
        ("name: [", "1:8: this is not valid YAML"),
        ("sources:\n\tclicks: {}", "2:1: this is not valid YAML: a line is indented with a tab: use spaces"),
        ("name: a: b", "1:8: this is not valid YAML: a second ': ' in a line"),
        ("name: \x07", "1:7: the character U+0007 is not allowed"),
        ("", "1:1: the file is empty"),
        ("- a", "1:1: a pipeline is a mapping with sources, steps and sinks, not a list"),
    ],
)
def test_bad_yaml_is_refused_with_line_and_column(tmp_path: Path, text: str, said: str) -> None:
    assert any(problem.startswith(f"counts.yaml:{said}") for problem in problems(tmp_path, text))


def test_bytes_that_are_not_utf_8_have_a_place(tmp_path: Path) -> None:
    path = tmp_path / "counts.yaml"
    path.write_bytes(b"name: a\nsteps: \xff\n")
    (problem,) = read_pipeline(path)[1]
    assert str(problem) == f"{path}:2:8: the file is not UTF-8: save it in that encoding"


def test_size_nesting_and_aliases_have_limits(tmp_path: Path) -> None:
    assert "more than 1 MiB" in problems(tmp_path, "#" * (FILE_BYTES_MAX + 1))[0]
    assert "nested deeper than" in problems(tmp_path, "a: " + "[" * (DEPTH_MAX + 1))[0]
    assert "nested deeper than" in problems(tmp_path, "[" * 100_000)[0]
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 10)
    )
    assert "more than 100,000 values, counting aliases" in problems(tmp_path, bomb)[0]


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidPipelineError, match=r"cannot read .*none.yaml: No such file or directory"):
        load_pipeline(tmp_path / "none.yaml")


def test_a_folder_stands_for_its_yaml_files(tmp_path: Path) -> None:
    paths = [write(tmp_path, "", name) for name in ("a.yaml", "b.yml", "c.txt")]
    assert pipeline_files([tmp_path, paths[0]]) == paths[:2]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no pipeline in"):
        pipeline_files([tmp_path / "empty"])
    with pytest.raises(ConfigError, match="there is no file"):
        pipeline_files([tmp_path / "nothing.yaml"])
