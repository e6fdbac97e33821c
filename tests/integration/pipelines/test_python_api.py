"""Pipelines in Python, with real Spark and a real broker."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from moldau.errors import CommandError
from moldau.pipelines import Pipeline, directory, lines, topic
from moldau.pipelines.model.pipeline import Pipeline as Model
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.parts import run
from tests.integration.pipelines.processes import produce_json, read_topic
from tests.integration.waiting import eventually

WITHIN_S = 90


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOLDAU_STATE_DIR", str(tmp_path / "state"))


def test_sql_and_functions_on_dataframes(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    numbers, out = new_topic(), new_topic()
    produce_json(bootstrap, numbers, ({"n": n} for n in range(10)))

    def doubled(even: DataFrame) -> DataFrame:
        return even.selectExpr("n", "2 * n AS m")

    pipeline = (
        Pipeline("doubles", folder=tmp_path)
        .source(topic(numbers, format="json", schema="n INT", name="numbers"))
        .step("SELECT * FROM numbers WHERE n % 2 = 0", name="even")
        .step(doubled)
        .to(topic(out, key="n"))
        .settings(kafka_bootstrap_servers=bootstrap)
    )
    with pipeline.start(spark) as handle:
        eventually(lambda: len(read_topic(bootstrap, out)) == 5, "all is there", WITHIN_S)
        eventually(lambda: handle.state == "RUNNING", "it runs", WITHIN_S)
        assert [(query["state"], query["restarts"]) for query in handle.status()] == [("RUNNING", 0)]
        with pytest.raises(CommandError, match="pipeline doubles is already running"):
            pipeline.start(spark)
    assert handle.state == "STOPPED"
    produce_json(bootstrap, numbers, [{"n": 10}])
    pipeline.run(spark, available_now=True)
    assert [record.json for record in read_topic(bootstrap, out)] == [{"n": n, "m": 2 * n} for n in range(0, 11, 2)]

    wrong = pipeline.step("SELECT o FROM doubled", name="wrong").to(topic(out), name="wrong")
    with pytest.raises(CommandError, match=r"query wrong failed: .*`o` cannot be resolved"):
        wrong.run(spark, available_now=True)
    assert "SQLQueryContextLogger" not in capfd.readouterr().err  # Spark's JSON with stacks


def test_sinks_of_a_stateful_view_share_its_state_and_one_that_joins_later_gets_what_comes_then(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    clicks, first, second, third = (new_topic() for _ in range(4))
    counts = (
        Pipeline("counts", folder=tmp_path)
        .source(topic(clicks, format="json", schema="page STRING", name="clicks"))
        .step("SELECT page, count(*) AS views FROM clicks GROUP BY page", name="counts")
        .settings({"spark": {"spark.sql.shuffle.partitions": 1}}, kafka_bootstrap_servers=bootstrap)
    )

    def views(name: str) -> Counter[tuple[str, int]]:
        return Counter((record.json["page"], record.json["views"]) for record in read_topic(bootstrap, name))

    produce_json(bootstrap, clicks, [{"page": "/a"}, {"page": "/b"}, {"page": "/a"}])
    both = counts.to(topic(first, key="page"), mode="update", name="first").to(
        topic(second, key="page"), mode="update", name="second"
    )
    both.run(spark, available_now=True)
    assert views(first) == views(second) == Counter([("/a", 2), ("/b", 1)])
    assert [path.name for path in (tmp_path / "checkpoints" / "counts").iterdir()] == ["first"]

    produce_json(bootstrap, clicks, [{"page": "/a"}])
    joined = counts.to(topic(third, key="page"), mode="update", name="third").to(
        topic(second, key="page"), mode="update", name="second"
    )
    joined.run(spark, available_now=True)
    assert views(second) == Counter([("/a", 2), ("/b", 1), ("/a", 3)])
    assert views(third) == Counter([("/a", 3)])
    assert views(first) == Counter([("/a", 2), ("/b", 1)])
    assert [path.name for path in (tmp_path / "checkpoints" / "counts").iterdir()] == ["first"]


def test_in_a_shared_query_no_sink_has_what_another_cannot_write_and_none_writes_twice(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    clicks, first, second = (new_topic() for _ in range(3))

    def pipeline(key: str) -> Model:
        return (
            Pipeline("shared", folder=tmp_path)
            .source(topic(clicks, format="json", schema="page STRING", name="clicks"))
            .step("SELECT page, count(*) AS views FROM clicks GROUP BY page", name="counts")
            .to(topic(first, key="page"), mode="update", name="first")
            .to(lines("out.jsonl"), mode="update", name="out")
            .to(directory("files", format="json"), mode="update", name="files")
            .to(topic(second, key=key), mode="update", name="second")
            .settings({"spark": {"spark.sql.shuffle.partitions": 1}}, kafka_bootstrap_servers=bootstrap)
            .settings(trigger="available now")
            .model
        )

    produce_json(bootstrap, clicks, [{"page": "/a"}, {"page": "/bad"}])
    with pytest.raises(StreamingQueryException, match="bad key"):
        run(spark, pipeline("if(page = '/bad', raise_error('bad key'), page)"))
    assert read_topic(bootstrap, first) == []
    assert not (tmp_path / "out.jsonl").exists()
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(StreamingQueryException):
        run(spark, pipeline("page"))
    assert len(read_topic(bootstrap, first)) == 2
    (tmp_path / "files").unlink()
    run(spark, pipeline("page"))
    files = [path.read_text() for path in (tmp_path / "files").glob("*.json")]
    for rows in ((tmp_path / "out.jsonl").read_text(), "".join(files)):
        assert sorted(rows.splitlines()) == ['{"page":"/a","views":1}', '{"page":"/bad","views":1}']
    assert len(read_topic(bootstrap, first)) == len(read_topic(bootstrap, second)) == 2
