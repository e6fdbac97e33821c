"""Rules of lint that need more than one mistake in a file; the others are in `bad_files/mistakes.txt`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.doors.yaml_file import read_pipeline, read_pipelines
from moldau.pipelines.model.check import PARTS_MAX, check
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source, Step
from moldau.pipelines.model.schemas import schema_columns

CLICKS = """\
sources:
  clicks: {connector: topic, topic: clicks, format: json, schema: "page STRING, at TIMESTAMP"}
  pages: {connector: topic, topic: pages, format: json, schema: "page STRING, title STRING", static: true}
"""


def problems(folder: Path, text: str) -> list[str]:
    path = folder / "a.yaml"
    path.write_text(text, "utf-8")
    return [str(problem).removeprefix(f"{path}:") for problem in read_pipeline(path)[1]]


def with_query(sql: str, sink: str = "") -> str:
    return f"{CLICKS}steps:\n  counts:\n    sql: {sql}\nsinks:\n  out: {{connector: topic, topic: out{sink}}}\n"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT page, count(*) AS n FROM clicks GROUP BY page",
        "SELECT window, count(*) AS n FROM clicks JOIN pages USING (page) GROUP BY window(at, '1 minute')",
    ],
)
def test_groups_in_append_mode_need_a_watermark(tmp_path: Path, sql: str) -> None:
    (problem,) = [each for each in problems(tmp_path, with_query(sql)) if "warning" not in each]
    assert problem.startswith("8:3: sink out: in mode append, the groups of step counts are written when")
    assert "Add `watermark` to source clicks, or use mode update." in problem
    assert not [each for each in problems(tmp_path, with_query(sql, ", mode: update")) if "warning" not in each]


def test_a_table_is_no_stream(tmp_path: Path) -> None:
    assert problems(tmp_path, with_query("SELECT count(*) AS n FROM pages")) == [
        "8:3: sink out: 'counts' is not a stream: at least one of its sources must not be static"
    ]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (
            "connector: topic, topic: a, schema: x INT",
            "2:43: source a: schema has no effect without a format that has fields: add for example `format: json`",
        ),
        (
            "connector: lines, path: a.log, schema: x INT",
            "2:46: source a: schema is for `format: json`: lines of text have the columns value, file, position",
        ),
    ],
)
def test_a_schema_without_effect_is_a_problem(tmp_path: Path, source: str, problem: str) -> None:
    text = f"sources:\n  a: {{{source}}}\nsinks:\n  out: {{connector: topic, topic: out}}\n"
    assert problems(tmp_path, text) == [problem]


def test_tables_of_sparks_catalog_need_their_database(tmp_path: Path) -> None:
    found = problems(tmp_path, with_query("SELECT * FROM clicks JOIN shop.users USING (page) JOIN orders USING (page)"))
    assert [problem for problem in found if "warning" not in problem] == [
        "6:65: step counts reads 'orders', which is not a source or step. There are: clicks, pages. "
        "Write a table of Spark's catalog with its database: default.orders."
    ]


@pytest.mark.parametrize(
    ("sql", "problem"),
    [
        (
            "SELECT * FORM clicks WHERE page > ''",
            "6:19: step counts: reads no source or step: 'FORM': did you mean FROM?",
        ),
        ("SELECT page, at frm clicks", "6:26: step counts: reads no source or step: 'frm': did you mean FROM?"),
        ("SELECT 1 AS form", "6:10: step counts reads no source or step: a sink cannot write what is no stream"),
    ],
)
def test_a_query_that_reads_nothing_is_a_problem_of_the_step(tmp_path: Path, sql: str, problem: str) -> None:
    assert problems(tmp_path, with_query(sql)) == [problem]


def test_a_table_of_constants_may_be_joined(tmp_path: Path) -> None:
    sinks = "sinks:\n  out: {connector: topic, topic: out}\n"
    steps = "steps:\n  one: {sql: SELECT 1 AS form}\n  both: {sql: SELECT * FROM clicks CROSS JOIN one}\n"
    assert problems(tmp_path, f"{CLICKS}{steps}{sinks}") == ["3:3: warning: source pages is not used by any sink"]


def test_json_needs_a_schema(tmp_path: Path) -> None:
    text = "sources:\n  a: {connector: topic, topic: a, format: json}\nsinks:\n  b: {connector: topic, topic: b}\n"
    message = "source a: format json needs a schema: add one, as `moldau pipeline preview` prints it"
    assert problems(tmp_path, text) == [f"2:43: {message}"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ('Problem("wrong", "file")', "yields a Problem whose place is 'file'"),
        ('"wrong"', "yields 'wrong', which is not a Problem"),
    ],
)
def test_a_connector_whose_check_is_wrong_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, found: str, said: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "wrongly_checked.py").write_text(
        "from moldau.pipelines import Connector, OptionTable, Problem\n"
        "class Files(Connector):\n"
        "    source_options = OptionTable()\n"
        f"    def check(self, options, *, is_source):\n        yield {found}\n"
    )
    with pytest.raises(ConfigError) as raised:
        problems(tmp_path, 'sources:\n  a: {connector: "wrongly_checked:Files"}\n')
    sys.modules.pop("wrongly_checked")
    assert str(raised.value) == (
        f"connector wrongly_checked:Files: its `check` {said}: "
        'yield Problem("what is wrong", options["name"].place), with the name of an option'
    )


def test_steps_that_read_each_other_are_named(tmp_path: Path) -> None:
    text = CLICKS + "steps:\n  a: {sql: SELECT * FROM b}\n  b: {sql: SELECT * FROM a JOIN clicks}\n"
    assert problems(tmp_path, text) == ["5:26: steps a and b depend on each other: one of them must not read the other"]


def test_a_step_that_comes_later_cannot_be_read(tmp_path: Path) -> None:
    text = CLICKS + "steps:\n  a: {sql: SELECT * FROM b}\n  b: {sql: SELECT * FROM clicks}\n"
    assert problems(tmp_path, text) == ["5:26: step a reads step b, which comes after it: move b up"]


def test_what_no_sink_uses_is_a_warning(tmp_path: Path) -> None:
    text = CLICKS + "sinks:\n  out: {from: clicks, connector: topic, topic: out}\n"
    assert problems(tmp_path, text) == ["3:3: warning: source pages is not used by any sink"]


def test_a_password_in_the_file_is_a_warning_and_is_not_printed(tmp_path: Path) -> None:
    sinks = "sinks:\n  a: {from: clicks, connector: topic, topic: a}\n  b: {from: pages, connector: topic, topic: b}\n"
    text = CLICKS.replace(", static: true", "") + sinks + "settings:\n  kafka.sasl.jaas.config: hunter2\n"
    assert problems(tmp_path, text) == [
        "8:27: warning: settings: kafka.sasl.jaas.config is a secret: write a reference, such as ${env:PASSWORD}"
    ]
    assert problems(tmp_path, text.replace("hunter2", '"${env:JAAS}"')) == []
    (problem,) = problems(tmp_path, text.replace("hunter2", "[hunter2]"))
    assert "hunter2" not in problem


def test_a_secret_among_the_settings_of_spark_is_a_warning(tmp_path: Path) -> None:
    text = (
        "sources:\n  a: {connector: topic, topic: a}\nsinks:\n  b: {connector: topic, topic: b}\nsettings:\n  spark:\n"
        "    spark.hadoop.fs.s3a.secret.key: hunter2\n"
        "    spark.ssl.keyPassword: ${env:KEY_PASSWORD}\n"
        "    spark.hadoop.fs.s3a.aws.credentials.provider: org.example.Provider\n"
    )
    name = "spark.hadoop.fs.s3a.secret.key"
    assert problems(tmp_path, text) == [
        f"7:5: warning: settings: spark: {name} is a secret: write a reference, such as ${{env:PASSWORD}}"
    ]


def test_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_bytes(with_query("|\n      SELECT *\n      FROM klicks").replace("\n", "\r\n").encode())
    assert [str(problem).removeprefix(f"{path}:")[:32] for problem in read_pipeline(path)[1]] == [
        "8:12: step counts reads 'klicks'"
    ]


def test_folded_text_has_the_place_of_its_step(tmp_path: Path) -> None:
    found = problems(tmp_path, with_query(">\n      SELECT *\n      FROM klicks"))
    assert found[0].startswith("5:3: step counts reads 'klicks'")


def test_a_pipeline_has_a_limit(tmp_path: Path) -> None:
    steps = "".join(f"  s{number}: {{sql: SELECT * FROM clicks}}\n" for number in range(PARTS_MAX))
    assert f"more than {PARTS_MAX} sources, steps and sinks" in problems(tmp_path, f"{CLICKS}steps:\n{steps}")[0]


def test_pipelines_made_in_python_are_checked_without_places() -> None:
    pipeline = Pipeline(
        "p",
        sources=(Source("a", "topic", {"topic": Given("a"), "formt": Given("json")}), Source("d", "topic")),
        steps=(Step("b", python=lambda a: a, inputs=("a", "spark", "c")),),
        sinks=(Sink("out", "b", "topc"),),
    )
    assert [str(problem) for problem in check(pipeline, connector)] == [
        "source a has no option 'formt': did you mean 'format'?",
        "source d: a topic source needs exactly one of topic, subscribe, subscribePattern, assign: it has none",
        "sink out: unknown connector 'topc': did you mean 'topic'? Your own is `module:Class`.",
        "step b reads 'c', which is not a source or step. There are: a, d.",
    ]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("page STRING, at TIMESTAMP", [("page", "string"), ("at", "timestamp")]),
        ("`a b`: STRUCT<c: INT, d: ARRAY<MAP<STRING, DECIMAL(10, 2)>>>, e INT", [("a b", "struct"), ("e", "int")]),
        ("a INT NOT NULL COMMENT 'one, two', b VARCHAR(10)", [("a", "int"), ("b", "varchar")]),
        ("a INTERVAL DAY TO SECOND, b STRUCT<>", [("a", "interval"), ("b", "struct")]),
    ],
)
def test_columns_of_a_schema(text: str, columns: list[tuple[str, str]]) -> None:
    assert [tuple(column) for column in schema_columns(text)] == columns


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a column's name is missing at the end"),
        ("a", "the type of column 'a' is missing at the end"),
        ("a INT,", "a column's name is missing at the end"),
        ("a ARRAY<INT", "'>' is missing at the end"),
        ("a INT b", None),
        ("a INT>", "did not expect '>'"),
        ("a MAP<STRING>", "expected ',', found '>'"),
        ("a INTT", "unknown type 'intt': did you mean INT?"),
        ("a ?", "cannot read the schema at '?'"),
        ("a " + "ARRAY<" * 60 + "INT" + ">" * 60, "types are nested more than 50 deep"),
    ],
)
def test_what_is_wrong_with_a_schema(text: str, reason: str | None) -> None:
    if reason is None:  # Spark refuses it
        assert schema_columns(text)
        return
    with pytest.raises(ValueError, match="^" + reason.replace("?", r"\?")):
        schema_columns(text)


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("{connector: topic, topic: a, watermark: timestamp 1 minute}", ""),
        (
            "{connector: topic, topic: a, watermark: at 1 minute}",
            "there is no column 'at'. Its columns are: key, value,",
        ),
        (
            "{connector: lines, path: a.log, watermark: value 1 minute}",
            "column value is STRING: event time must be a TIMEST",
        ),
        ("{connector: directory, path: a, format: text, metadata: modified, watermark: modified 1 minute}", ""),
        ("{connector: directory, path: a, format: parquet, watermark: at 1 minute}", ""),
        ("{connector: directory, path: a, format: json, schema: '${env:S}', watermark: at 1 minute}", ""),
    ],
)
def test_the_column_of_a_watermark_is_one_of_the_source(tmp_path: Path, source: str, answer: str) -> None:
    found = problems(tmp_path, f"sources:\n  a: {source}\nsinks:\n  b: {{connector: console}}\n")
    column = 6 + source.index("watermark: ") + len("watermark: ")
    start = f"2:{column}: source a: watermark: {answer}"
    assert [each[: len(start)] for each in found] == ([start] if answer else [])


def test_a_sink_has_the_modes_of_its_connector(tmp_path: Path) -> None:
    sink = "{from: counts, connector: directory, path: out, mode: complete}"
    text = CLICKS + f"steps:\n  counts:\n    sql: SELECT count(*) AS n FROM clicks\nsinks:\n  out: {sink}\n"
    assert problems(tmp_path, text) == [
        "8:62: sink out: connector directory has no mode complete: use append or update"
    ]


def test_a_loop_and_a_setting_that_is_not_sparks_are_warnings(tmp_path: Path) -> None:
    source, sink = "{connector: topic, topic: same}", "{connector: topic, topic: same}"
    settings = "settings:\n  spark: {sql.shuffle.partitions: 4}\n"
    assert problems(tmp_path, f"sources:\n  a: {source}\nsinks:\n  b: {sink}\n{settings}") == [
        "4:3: warning: sink b writes what source a reads: the pipeline reads its own output",
        "6:11: warning: settings: spark: 'sql.shuffle.partitions' is not a Spark setting: "
        "did you mean 'spark.sql.shuffle.partitions'?",
    ]
    mirror = sink.replace("same", "same, kafka.bootstrap.servers: other:9092")
    assert problems(tmp_path, f"sources:\n  a: {source}\nsinks:\n  b: {mirror}\n") == []


def test_a_name_that_is_there_twice_is_the_only_problem_of_names() -> None:
    topics = {"topic": Given("a")}
    pipeline = Pipeline(
        "p", (Source("a", "topic", topics), Source("A", "topic", topics)), sinks=(Sink("b", "c", "topc"),)
    )
    assert [str(problem) for problem in check(pipeline, connector)] == [
        "source A has the same name as source a: choose another",
        "sink b: unknown connector 'topc': did you mean 'topic'? Your own is `module:Class`.",
    ]


def test_dead_letters_do_not_go_where_records_come_from(tmp_path: Path) -> None:
    text = "sources:\n  a: {connector: topic, topic: same}\nsinks:\n  b: {connector: topic, topic: other}\n"
    assert problems(tmp_path, f"{text}settings:\n  dead letters: other\n") == []
    assert problems(tmp_path, f"{text}settings:\n  dead letters: same\n") == [
        "6:17: settings: dead letters: source a reads the topic 'same', so each dead letter would be a bad record "
        "again, without end: name another topic"
    ]


def test_two_sinks_do_not_append_to_one_file(tmp_path: Path) -> None:
    sinks = "  b: {connector: lines, path: out.txt}\n  c: {connector: lines, path: ./out.txt}\n"
    assert problems(tmp_path, f"sources:\n  a: {{connector: topic, topic: t}}\nsinks:\n{sinks}") == [
        "5:31: sink c: path: sink b writes to this file, too: give each a file of its own"
    ]


def test_two_pipelines_do_not_append_to_one_file(tmp_path: Path) -> None:
    text = "sources:\n  a: {connector: topic, topic: t}\nsinks:\n  b: {connector: lines, path: PATH}\n"
    (tmp_path / "sub").mkdir()
    files = {tmp_path / "one.yaml": "out.txt", tmp_path / "sub/two.yaml": "../out.txt", tmp_path / "three.yaml": "o"}
    for file, path in files.items():
        file.write_text(text.replace("PATH", path))
    _, found = read_pipelines(list(files))
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in found] == [
        "sub/two.yaml:4:31: sink b: path: pipeline one writes to this file, too: use another file"
    ]


def test_a_watermark_of_a_table_has_no_effect(tmp_path: Path) -> None:
    text = """sources:
  a: {connector: topic, topic: t, format: json, schema: 'at TIMESTAMP'}
  b:
    connector: directory
    path: p
    format: json
    static: true
    schema: at TIMESTAMP
    watermark: at 1 minute
steps:
  s: {sql: SELECT a.at FROM a JOIN b ON a.at = b.at}
sinks:
  o: {connector: topic, topic: o}
"""
    assert problems(tmp_path, text) == [
        "9:5: warning: source b: a watermark has no effect on a static source: remove it"
    ]
