"""`moldau pipeline test` and `moldau pipeline preview`, as people and programs see them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.cli.pipelines.main import main
from tests.integration.pipelines.bad_records.letters import records
from tests.integration.spark.topics import produce

PIPELINE = """
sources:
  clicks:
    connector: topic
    topic: {topic}
    {options}
steps:
  pages:
    sql: SELECT page, views + 1 AS views FROM clicks
sinks:
  out: {{connector: topic, topic: out}}
settings:
  kafka.bootstrap.servers: {bootstrap}
tests:
  - name: good
    given: {{clicks: [{{page: /a, views: 1}}]}}
    expect: {{pages: [{{views: 2}}]}}
  - name: bad
    given: {{clicks: [{{page: /a, views: 1}}]}}
    expect: {{pages: [{{page: /a, views: 3}}]}}
"""
TYPED = "format: json\n    schema: page STRING, views INT"


@pytest.fixture(autouse=True)
def loud_again(spark: SparkSession) -> Iterator[None]:
    yield
    spark.sparkContext.setLogLevel("WARN")


@pytest.fixture
def write(tmp_path: Path, bootstrap: str) -> Callable[..., str]:
    def write_file(options: str = TYPED, topic: str = "clicks") -> str:
        file = tmp_path / "pages.yaml"
        file.write_text(PIPELINE.format(options=options, topic=topic, bootstrap=bootstrap))
        return str(file)

    return write_file


def test_a_line_for_each_test_and_what_differs(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    file = write()
    assert main(["test", file]) == 1
    lines = [re.sub(r"\d+\.\d+ s", "N s", line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "passed  pages: good  (N s)",
        "FAILED  pages: bad  (N s)",
        f"    {file}:21:23: pages: row {{page: /a}}: views is 2, expected 3",
        "1 of 2 tests failed in N s",
    ]


def test_a_mistake_in_a_step_is_told_once_and_without_stacks(
    write: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    file = Path(write())
    text = file.read_text().replace("views + 1", "veiws + 1").replace("{pages: [{views: 2}]}", "{pages: [], out: []}")
    file.write_text(text.partition("  - name: bad")[0])
    assert main(["test", str(file)]) == 1
    printed = capfd.readouterr()
    assert "Traceback" not in printed.err
    assert "stacktrace" not in printed.err
    assert [line.strip() for line in printed.out.splitlines() if file.name in line] == [
        f"{file}:10:23: step pages: column `veiws` cannot be resolved: did you mean `views`?"
    ]


def test_json_and_the_choice_of_tests(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    file = write()
    assert main(["test", file, "--filter", "GOOD", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["pipeline"], result["test"], result["passed"], result["failures"]) == ("pages", "good", True, [])
    assert main(["test", file, "--filter", "nothing"]) == 2
    assert "none of the 2 tests has 'nothing' in its name" in capsys.readouterr().err


def test_a_preview_suggests_the_format_and_the_schema(
    write: Callable[..., str], new_topic: Callable[..., str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic()
    rows = [{"page": f"/{number}", "at": {"day": "2026-01-01"}} for number in range(5)]
    produce(bootstrap, topic, [json.dumps(row).encode() for row in rows])
    file = write("startingOffsets: earliest", topic)
    assert main(["preview", file, "clicks", "--rows", "2"]) == 0
    text = capsys.readouterr().out
    assert [f"/{number}" in text for number in range(3)] == [True, True, False]
    suggested = text[text.index("format: json") :]
    assert main(["preview", write(suggested.replace("\n", "\n    "), topic), "clicks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == rows
    elsewhere = Path(write("format: json", topic))
    elsewhere.write_text(elsewhere.read_text().replace(bootstrap, "localhost:1"))
    assert main(["preview", str(elsewhere), "clicks", "--json", "--bootstrap-server", bootstrap]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == rows


def test_a_preview_of_bytes_that_are_no_json_shows_text(
    write: Callable[..., str], new_topic: Callable[..., str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [b"plain", b"text"])
    assert main(["preview", write("metadata: partition", topic), "clicks", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == [{"value": "plain", "partition": 0}, {"value": "text", "partition": 0}]


def test_a_preview_leaves_out_what_it_cannot_decode_and_writes_no_dead_letters(
    write: Callable[..., str], new_topic: Callable[..., str], bootstrap: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, letters = new_topic(), new_topic()
    produce(bootstrap, topic, [b"{", b'{"page": "/a"}', b"no JSON", b'{"page": "/b"}'])
    lines = {"connector: topic": "connector: lines", f"topic: {topic}": "path: clicks.json"}
    for options, others in ((TYPED, {}), (TYPED + "\n    errors.tolerance: none", {}), (TYPED, lines)):
        file = Path(write(options, topic))
        text = file.read_text().replace("settings:", f"settings:\n  dead letters: {letters}")
        for old, new in others.items():
            text = text.replace(old, new, 1)
        file.write_text(text)
        file.with_name("clicks.json").write_text('{\n{"page": "/a"}\nno JSON\n{"page": "/b"}\n')
        assert main(["preview", str(file), "clicks", "--json"]) == 0
        assert [row["page"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["/a", "/b"]
    assert records(bootstrap, letters) == []


def test_a_preview_of_an_unknown_source(write: Callable[..., str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preview", write(), "click"]) == 2
    assert "has no source 'click': did you mean 'clicks'?" in capsys.readouterr().err
