"""Sources that are quiet: windows, sessions, joins and deduplication end by the clock."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from moldau.pipelines.engine.clock import QuietSources
from moldau.pipelines.engine.supervisor import State
from moldau.pipelines.engine.watching.progress import rows_in_state
from tests.integration.conftest import NewTopic
from tests.integration.pipelines.files import RUN_S, Output, running, send
from tests.integration.pipelines.processes import pipeline_command
from tests.integration.waiting import eventually

SOURCE = """
  {name}:
    connector: topic
    topic: {topic}
    format: json
    schema: page STRING, at TIMESTAMP
    watermark: {{column: at, delay: 0 seconds, idle: {idle}}}
"""
STEPS = {
    "windows": "SELECT page, count(*) AS n FROM a GROUP BY window(at, '1 second'), page",
    "sessions": "SELECT page, count(*) AS n FROM a GROUP BY session_window(at, '1 second'), page",
    "outer_join": "SELECT a.page, b.page AS n FROM a LEFT JOIN b ON a.page = b.page"
    " AND b.at BETWEEN a.at AND a.at + INTERVAL 1 SECOND",
}


def _write(folder: Path, bootstrap: str, sources: dict[str, str], steps: dict[str, str], idle: str) -> Path:
    """A step of each name is written to a topic of that name."""
    file = folder / "quiet.yaml"
    lines = ["sources:", *(SOURCE.format(name=name, topic=topic, idle=idle) for name, topic in sources.items())]
    lines += ["steps:", *(f"  {step}:\n    sql: {sql}" for step, sql in steps.items())]
    lines += ["sinks:", *(f"  to_{step}: {{from: {step}, connector: topic, topic: {step}}}" for step in steps)]
    lines += [f"settings: {{kafka.bootstrap.servers: '{bootstrap}', spark: {{spark.sql.shuffle.partitions: 1}}}}"]
    file.write_text("\n".join(lines))
    return file


def test_windows_sessions_and_joins_are_emitted_when_sources_are_quiet(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    sources, sinks = (
        {name: new_topic() for name in "ab"},
        {step: new_topic(name=f"{step}_{tmp_path.name}") for step in STEPS},
    )
    file = _write(tmp_path, bootstrap, sources, {sinks[step]: sql for step, sql in STEPS.items()}, "200 ms")
    send(bootstrap, sources["a"], {"page": "/1", "at": "2026-01-01T00:00:00.1Z"})
    outputs = {step: Output(bootstrap, topic) for step, topic in sinks.items()}
    rows = {step: {"page": "/1", "n": 1} if step != "outer_join" else {"page": "/1"} for step in STEPS}
    with running(spark, [file], [QuietSources()]) as supervisor:
        for step, output in outputs.items():
            output.wait_for(rows[step])  # in the join, b never has a row
        for query in supervisor.queries:
            # Without state there is nothing to flush, and the clock stands still.
            eventually(lambda query=query: query.progress and not rows_in_state(query.progress), "no state", RUN_S)
        # A row after the pause is not late: event time is what the rows say.
        send(bootstrap, sources["a"], {"page": "/2", "at": "2026-01-01T01:00:00Z"})
        for step, output in outputs.items():
            output.wait_for(rows[step], rows[step] | {"page": "/2"})
            output.close()
        assert [query.restarts for query in supervisor.queries] == [0, 0, 0]


def test_a_window_that_was_open_when_the_pipeline_was_stopped_is_emitted_after_a_restart_without_rows(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, sink = new_topic(), new_topic(name=f"out_{tmp_path.name}")
    file = _write(tmp_path, bootstrap, {"a": topic}, {sink: STEPS["windows"]}, "1 hour")
    send(bootstrap, topic, {"page": "/1", "at": "2026-01-01T00:00:00.1Z"})
    output = Output(bootstrap, sink)
    with running(spark, [file], [QuietSources()]) as supervisor:
        (query,) = supervisor.queries
        eventually(lambda: query.progress and rows_in_state(query.progress), "a row in the state", RUN_S)
    _write(tmp_path, bootstrap, {"a": topic}, {sink: STEPS["windows"]}, "200 ms")
    with running(spark, [file], [QuietSources()]):
        output.wait_for({"page": "/1", "n": 1})
    with running(spark, [file], [QuietSources()]) as supervisor:
        (query,) = supervisor.queries
        eventually(lambda: query.state is State.RUNNING, "running", RUN_S)
        send(bootstrap, topic, {"page": "/2", "at": "2026-01-01T01:00:00Z"})
        output.wait_for({"page": "/1", "n": 1}, {"page": "/2", "n": 1})
    output.close()


def test_a_run_that_is_refused_plans_no_batch_and_a_reset_counts_the_state(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topic, sink = new_topic(), new_topic(name=f"out_{tmp_path.name}")
    send(bootstrap, topic, {"page": "/1", "at": "2026-01-01T00:00:00.1Z"})
    for sql, end in ((STEPS["windows"], State.FINISHED), ("SELECT page FROM a", State.FAILED)):
        file = _write(tmp_path, bootstrap, {"a": topic}, {sink: sql}, "1 hour")
        file.write_text(file.read_text().replace("settings: {", "settings: {trigger: available now, "))
        with running(spark, [file], [QuietSources()]) as supervisor:
            assert supervisor.wait(RUN_S)
            assert [query.state for query in supervisor.queries] == [end]
    # In a new process, where Spark has had no query yet.
    done = pipeline_command(tmp_path, "reset", str(file), "--to", "committed", "--dry-run")
    assert done.returncode == 0
    assert "Exception" not in done.stderr
    assert "  1 row of state is dropped: windows and groups open now will not be written\n" in done.stdout
    assert "not finished" not in done.stdout


def test_a_source_that_is_busy_is_not_moved_and_one_that_is_quiet_does_not_hold_it_up(
    spark: SparkSession, bootstrap: str, new_topic: NewTopic, tmp_path: Path
) -> None:
    topics, sink = {"a": new_topic(), "b": new_topic()}, new_topic(name=f"out_{tmp_path.name}")
    sql = "SELECT page, count(*) AS n FROM (SELECT * FROM a UNION ALL SELECT * FROM b)"
    sql += " GROUP BY window(at, '1 second'), page"
    file = _write(tmp_path, bootstrap, topics, {sink: sql}, "2 seconds")
    send(bootstrap, topics["a"], {"page": "/1", "at": "2026-01-01T00:00:00.1Z"})
    send(bootstrap, topics["b"], {"page": "/1", "at": "2026-01-01T00:00:00.2Z"})
    output = Output(bootstrap, sink)
    with running(spark, [file], [QuietSources()]) as supervisor:
        (query,) = supervisor.queries
        eventually(lambda: query.progress and rows_in_state(query.progress), "a row in the state", RUN_S)
        sent = 0

        def is_emitted() -> bool:
            nonlocal sent
            sent += 1
            # Source a goes on in the same second: without b's clock, the watermark would stay below it.
            send(bootstrap, topics["a"], {"page": "/3", "at": f"2026-01-01T00:00:02.{sent:06}Z"})
            return bool(output.read())

        eventually(is_emitted, "the window of both", RUN_S)
        assert output.rows[0] == {"page": "/1", "n": 2}
    output.close()
