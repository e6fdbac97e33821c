"""A batch that fails again and again is narrowed down to the records at fault; the rest is processed exactly once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from moldau.errors import ConfigError
from moldau.pipelines.engine.bad_records.left_out import FILE
from moldau.pipelines.engine.bad_records.narrowing import NotNarrowedError, narrow
from moldau.pipelines.engine.bad_records.sending import send_pending
from moldau.pipelines.engine.queries import Settings, plan_queries
from moldau.pipelines.engine.run import Run
from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.model.pipeline import Action, Expectation, Pipeline, Sink, Step
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.bad_records.letters import given, records, run_once, shop, values
from tests.integration.spark.topics import produce

NUMBERS = Step("numbers", sql="SELECT page, CAST(n AS INT) AS n FROM clicks", inputs=("clicks",))


def record(number: int, n: str | None = None, **more: Any) -> dict[str, Any]:
    value = json.dumps({"page": f"/{number}", "n": str(number) if n is None else n}).encode()
    return {"value": value, "partition": number % 2, **more}


def upper(clicks: DataFrame) -> DataFrame:
    @f.udf("string", useArrow=False)
    def checked(page: str) -> str:
        if page == "/7":
            raise ValueError(f"no page {page}")
        return page.upper()

    return clicks.select(checked("page").alias("page"))


@contextmanager
def running(spark: SparkSession, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, home: Path) -> Iterator[Run]:
    monkeypatch.setenv("MOLDAU_STATE_DIR", str(home))
    run = Run([pipeline], spark=spark)
    run.start()
    try:
        yield run
    finally:
        run.stop(now=True)
        assert run.wait(60)


def fail_once(spark: SparkSession, pipeline: Pipeline) -> str:
    with pytest.raises(StreamingQueryException) as failed:
        run_once(spark, pipeline)
    return str(failed.value)


def test_a_poison_record_in_a_python_step_goes_to_the_dead_letters_and_the_pipeline_continues(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic(2)
    bad = record(7, key=b"\xff", headers=[("a", None), ("b", b"\x00")], timestamp=1_700_000_000_007)
    produce(bootstrap, topic, [bad if number == 7 else record(number) for number in range(30)])
    pipeline = shop(bootstrap, tmp_path, topic, Step("upper", python=upper, inputs=("clicks",)))
    with running(spark, pipeline, monkeypatch, tmp_path / "state") as run:
        assert run.wait(120)
        assert run.state is State.FINISHED, run.queries[0].reason
    pages = sorted(json.loads(value or b"")["page"] for value in values(bootstrap, f"{topic}-out"))
    assert pages == sorted(f"/{number}" for number in range(30) if number != 7)
    (letter,) = records(bootstrap, f"{topic}-letters")
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"\xff", bad["value"], 1_700_000_000_007)
    assert letter.own_headers == [("a", None), ("b", b"\x00")]
    assert letter.origin == (topic, 1, 3)
    assert letter.reason.startswith("ValueError: no page /7")
    assert letter.header("moldau.query") == "out"


def test_culprits_in_sql_are_found_whatever_else_is_wrong_with_the_batch(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    """Undecodable records are dead letters of the source; the search does not write them again."""
    topic = new_topic(2)
    rows = [record(number, "x" if number in (3, 4, 11) else None) for number in range(20)]
    produce(bootstrap, topic, [*rows, {"value": b"no json", "partition": 0}])
    pipeline = shop(bootstrap, tmp_path, topic, NUMBERS)
    (plan,), settings = plan_queries(pipeline), Settings.of(pipeline)
    assert "CAST_INVALID_INPUT" in fail_once(spark, pipeline)
    undecodable = values(bootstrap, f"{topic}-letters").count(b"no json")
    found = narrow(spark, plan, settings)
    assert sorted((one.partition, one.offset) for one in found) == [(0, 2), (1, 1), (1, 5)]
    letters = values(bootstrap, f"{topic}-letters")
    assert letters.count(b"no json") == undecodable
    assert {letter for letter in letters if letter != b"no json"} == {rows[number]["value"] for number in (3, 4, 11)}
    assert len(letters) == undecodable + 3
    run_once(spark, pipeline)
    written = [json.loads(value or b"")["n"] for value in values(bootstrap, f"{topic}-out")]
    assert sorted(written) == [number for number in range(20) if number not in (3, 4, 11)]
    # The file has no effect on later batches.
    produce(bootstrap, topic, [record(20)])
    run_once(spark, pipeline)
    assert values(bootstrap, f"{topic}-out")[-1] is not None
    assert len(values(bootstrap, f"{topic}-out")) == 18


def test_a_record_that_is_too_large_for_the_topic_of_a_sink_is_a_dead_letter(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    new_topic(name=f"{topic}-out")
    produce(bootstrap, topic, [{**record(number), "partition": 0} for number in range(6)])
    large = Step("large", sql="SELECT repeat(page, IF(n = 2, 2000000, 1)) AS page, n FROM clicks", inputs=("clicks",))
    larger_requests = given(topic=f"{topic}-out", key="n", kafka__max__request__size=9_000_000)
    for sink, why in [
        (given(topic=f"{topic}-out", key="n"), "larger than kafka.max.request.size=1048576"),
        (larger_requests, "larger than max.message.bytes of the topic=1048588"),
    ]:
        folder = tmp_path / str(len(sink))
        pipeline = shop(bootstrap, folder, topic, large, sinks=[Sink("out", "large", "topic", options=sink)])
        assert "larger than" in fail_once(spark, pipeline)
        (culprit,) = narrow(spark, plan_queries(pipeline)[0], Settings.of(pipeline))
        assert culprit.offset == 2
        assert why in culprit.reason
        run_once(spark, pipeline)
    written = [json.loads(value or b"")["n"] for value in values(bootstrap, f"{topic}-out")]
    assert sorted(written) == sorted(["0", "1", "3", "4", "5"] * 2)


def test_windows_before_and_after_a_poison_record_are_the_same(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    counts = Step(
        "counts",
        sql="SELECT window.start AS minute, sum(CAST(n AS INT)) AS total FROM clicks GROUP BY window(at, '1 minute')",
        inputs=("clicks",),
    )
    source = {"schema": "n STRING, at TIMESTAMP", "watermark": {"column": "at", "delay": "1 second", "idle": "never"}}
    sink = Sink("out", "counts", "topic", "append", given(topic=f"{topic}-out"))
    pipeline = shop(bootstrap, tmp_path, topic, counts, sinks=[sink], source=source)
    produce(bootstrap, topic, [b'{"n":"1","at":"2026-01-01T00:00:01Z"}', b'{"n":"2","at":"2026-01-01T00:01:01Z"}'])
    run_once(spark, pipeline)
    produce(bootstrap, topic, [b'{"n":"?","at":"2026-01-01T00:01:02Z"}', b'{"n":"4","at":"2026-01-01T00:01:03Z"}'])
    produce(bootstrap, topic, [b'{"n":"8","at":"2026-01-01T00:09:00Z"}'])
    fail_once(spark, pipeline)
    (plan,) = plan_queries(pipeline)
    assert [str(one) for one in narrow(spark, plan, Settings.of(pipeline))] == [f"{topic}-0@2"]
    run_once(spark, pipeline)
    totals = [json.loads(value or b"")["total"] for value in values(bootstrap, f"{topic}-out")]
    assert totals == [1, 6]


@pytest.mark.parametrize("killed_at", ["write_task", "mark"])
def test_a_kill_at_any_point_of_the_search_loses_and_duplicates_nothing(  # noqa: PLR0917
    spark: SparkSession,
    bootstrap: str,
    new_topic: NewTopic,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_at: str,
) -> None:
    topic = new_topic(2)
    produce(bootstrap, topic, [record(number, "x" if number in (3, 4) else None) for number in range(8)])
    pipeline = shop(bootstrap, tmp_path, topic, NUMBERS)
    (plan,), settings = plan_queries(pipeline), Settings.of(pipeline)
    fail_once(spark, pipeline)
    with monkeypatch.context() as patched:
        _kill(patched, killed_at)
        with pytest.raises(KeyboardInterrupt):
            narrow(spark, plan, settings)
    # A new process: what every start does first.
    send_pending(spark, plan, settings)
    run_once(spark, pipeline)
    send_pending(spark, plan, settings)
    assert Counter(letter.origin for letter in records(bootstrap, f"{topic}-letters")) == {
        (topic, 0, 2): 1,
        (topic, 1, 1): 1,
    }
    written = [json.loads(value or b"")["n"] for value in values(bootstrap, f"{topic}-out")]
    assert sorted(written) == [0, 1, 2, 5, 6, 7]


def _kill(patched: pytest.MonkeyPatch, at: str) -> None:
    """When the dead letters are written but not committed, or committed but not marked as sent."""
    from moldau.pipelines.engine.bad_records.left_out import LeftOut
    from moldau.spark.sink import exactly_once

    save, write_task = LeftOut.save, exactly_once.write_task

    def killed_after(*arguments: Any) -> None:
        write_task(*arguments)
        raise KeyboardInterrupt

    def killed_if_sent(self: LeftOut, folder: Any) -> None:
        if self.is_sent:
            raise KeyboardInterrupt
        save(self, folder)

    if at == "mark":
        patched.setattr(LeftOut, "save", killed_if_sent)
    else:
        patched.setattr(exactly_once, "write_task", killed_after)


def test_so_many_culprits_fail_the_query_and_none_is_a_dead_letter(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic = new_topic()
    produce(bootstrap, topic, [{**record(number, "x"), "partition": 0} for number in range(100)])
    pipeline = shop(bootstrap, tmp_path, topic, NUMBERS)
    fail_once(spark, pipeline)
    (plan,) = plan_queries(pipeline)
    with pytest.raises(ConfigError, match=r"more than 3 records of batch 0 fail \(The value 'x'"):
        narrow(spark, plan, Settings.of(pipeline), culprits_max=3)
    assert not (tmp_path / "checkpoints/shop/out" / FILE).exists()


def test_what_is_not_about_data_is_not_narrowed(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    def asks_a_service(clicks: DataFrame) -> DataFrame:
        @f.udf("string", useArrow=False)
        def asked(page: str) -> str:
            raise ConnectionRefusedError("the service is away")

        return clicks.select(asked("page").alias("page"))

    topic = new_topic()
    produce(bootstrap, topic, [record(0)])
    refused = Expectation("never", "clicks", "page = ''", Action.FAIL)
    steps = {"asks": Step("asks", python=asks_a_service, inputs=("clicks",)), "numbers": NUMBERS}
    for name, expect, letters, why in [
        ("asks", [], "", "the search met another error: ConnectionRefusedError: the service is away"),
        ("numbers", [refused], "", "the search met another error: expectation never of clicks failed"),
        ("asks", [], None, "the pipeline has no topic for dead letters"),
    ]:
        folder = tmp_path / f"{name}-{letters}-{len(expect)}"
        pipeline = shop(bootstrap, folder, topic, steps[name], expect=expect, letters=letters)
        fail_once(spark, pipeline)
        with pytest.raises(NotNarrowedError, match=why):
            narrow(spark, plan_queries(pipeline)[0], Settings.of(pipeline))
