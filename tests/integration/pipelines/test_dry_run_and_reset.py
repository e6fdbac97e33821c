"""`dry-run` says what a run would do and changes nothing; `reset` gives a query another start."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.cli.pipelines import reset
from moldau.errors import ConfigError
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.dry_run import QueryReport, dry_run
from moldau.pipelines.engine.queries import Settings
from moldau.pipelines.engine.state_files import RunFile
from tests.integration.pipelines.changing import UNION, WINDOWS, Changing
from tests.integration.pipelines.files import Output


def _report(changing: Changing) -> QueryReport:
    (report,) = dry_run(changing.spark, [load_pipeline(changing.file)])
    return report


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"}


def test_a_dry_run_says_where_a_query_continues_and_what_would_be_refused(changing: Changing, tmp_path: Path) -> None:
    changing.send("/1", 0, "a", "a")
    changing.write(WINDOWS, "a")
    before = _files(tmp_path)
    new = _report(changing)
    assert (new.batch, new.records, new.stateful, new.problems) == (None, 2, ("aggregation",), [])
    assert _files(tmp_path) == before
    changing.run(WINDOWS, "a")
    changing.send("/1", 0, "a")
    changing.write(WINDOWS, "a", watermark="at 2 minutes")
    before = _files(tmp_path)
    kept = _report(changing)
    assert kept.batch is not None
    assert (kept.can_run, kept.is_repeated, kept.records, len(kept.changes)) == (True, False, 1, 1)
    changing.write("SELECT page FROM a", "a")
    refused = _report(changing)
    assert not refused.can_run
    assert refused.refused == ["the query kept state for aggregation and now needs it for nothing"]
    assert [way.split("--to ")[1].split("`")[0] for way in refused.ways_out] == ["committed", "earliest"]
    changing.file.write_text(changing.file.read_text().replace("  sink:", "  renamed:"))
    changing.file.write_text(changing.file.read_text().replace("SELECT page FROM a", WINDOWS))
    (renamed,) = _report(changing).notes
    assert renamed.startswith("there is a checkpoint of query sink, which reads the same")
    assert renamed.endswith("checkpoints/changing/sink to " + renamed.rpartition(" ")[2])
    changing.write(WINDOWS, "a")
    changing.file.write_text("name: another\n" + changing.file.read_text())
    (renamed,) = _report(changing).notes
    assert renamed.startswith("there is a checkpoint of pipeline changing, which reads the same")
    changing.write(WINDOWS.replace("FROM a", "FROM a WHERE k > 5"), "a")
    filtered = _report(changing)
    assert (filtered.refused, filtered.notes) == ([], [])
    assert (
        "step s has changed, from the next record on; windows and groups that are open now mix" in filtered.changes[-1]
    )
    changing.write(WINDOWS.replace("GROUP", " GROUP"), "a")
    assert _report(changing).changes == []
    key = changing.file.read_text().replace("mode: append", "key: page, mode: append")
    changing.file.write_text(key)
    assert _report(changing).changes[0].startswith("sink sink: key has changed, from the next record on")
    changing.file.write_text(key.replace("  sink:", "  other: {connector: console, from: a}\n  # sink:"))
    assert "sink is no longer in the pipeline; its checkpoint stays in" in " ".join(_report(changing).notes)
    changing.write(WINDOWS, "a")
    assert _files(tmp_path).keys() == before.keys()


def test_a_dry_run_finds_mistakes_that_only_spark_and_the_broker_know(changing: Changing) -> None:
    changing.write(WINDOWS, "a")
    good = changing.file.read_text()
    step = next(number for number, line in enumerate(good.split("\n"), 1) if "SELECT" in line)
    select, at_step = "SELECT page, count(*)", rf"changing.yaml:{step}:\d+: step s"
    sink, settings = "mode: append}", "settings: {"
    checked = "expect:\n  sane: {view: a, condition: %s, action: dead-letter}\nsettings: {dead letters: dl, "
    mistakes = {
        (select, "SELECT page, conut(*)"): rf"{at_step}: there is no function `conut`: did you mean `count`\?$",
        (select, "SELECT nopage, count(*)"): rf"{at_step}: column `nopage` cannot be resolved: did you mean `page`\?$",
        (select, "SELECT page,, count(*)"): rf"{at_step}: Syntax error",
        ("GROUP BY", "GRUOP BY"): rf"{at_step}: syntax error near 'GRUOP BY': did you mean GROUP BY\?$",
        (
            sink,
            "mode: append, key: pgae}",
        ): rf":{step + 2}:\d+: sink sink: key: column `pgae` .*: did you mean `page`\?$",
        (sink, "mode: append, key: page k k}"): rf":{step + 2}:\d+: sink sink: key: Syntax error",
        (sink, "mode: append}\n  files: {connector: directory, path: o, format: json, partition by: pagee}"): (
            rf":{step + 3}:\d+: sink files: partition by: column `pagee` cannot be resolved: did you mean `page`\?$"
        ),
        (
            settings,
            checked % "kk > 0",
        ): r":\d+:\d+: expectation sane: column `kk` cannot be resolved\. There are: at, k, page\b",
        (
            settings,
            checked % "k BETWEEN 0 9",
        ): r":\d+:\d+: expectation sane: Syntax error at or near '9': missing 'AND'\.$",
    }
    for (right, wrong), expected in mistakes.items():
        changing.file.write_text(good.replace(right, wrong))
        reports = dry_run(changing.spark, [load_pipeline(changing.file)])
        (problem,) = {problem for report in reports for problem in report.problems}
        assert re.search(expected, problem), problem
    changing.file.write_text(good.replace(changing.topics["a"], "there-is-no-such-topic"))
    assert "there-is-no-such-topic" in _report(changing).problems[0]
    changing.file.write_text(good.replace("spark.sql.shuffle.", "spark.sql.shufle."))
    (note,) = _report(changing).notes
    assert re.search(
        r":\d+:\d+: settings: spark: Spark does not know 'spark.sql.shufle.partitions': did you mean", note
    )
    changing.file.write_text(good.replace(changing.topics["out"], "not-there-yet"))
    (note,) = _report(changing).notes
    assert note.startswith("sink sink: topic not-there-yet does not exist yet")
    changing.write(WINDOWS.replace("window(at, '1 minute'), ", ""), "a")
    assert "append" in _report(changing).problems[0].lower()


def test_a_reset_to_committed_loses_the_state_and_no_record(
    changing: Changing, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOLDAU_STATE_DIR", str(tmp_path / "state"))
    output = Output(changing.bootstrap, changing.topics["out"])
    counts = "SELECT page, count(*) AS n FROM a GROUP BY page"
    changing.send("1", 0, "a")
    changing.run(counts, "a", mode="update")
    output.wait_for({"page": "1", "n": 1})
    changing.send("2", 0, "a", "b")
    changing.write(UNION, "a b")
    pipeline = load_pipeline(changing.file)
    lock = RunFile(pipeline, Settings.of(pipeline).checkpoint(pipeline))
    assert reset.main([str(changing.file), "--to", "committed"]) == 1
    assert "is already running" in capsys.readouterr().err
    lock.close()
    assert reset.main([str(changing.file), "--to", "committed", "--query", "snik"]) == 1
    assert "did you mean 'sink'?" in capsys.readouterr().err
    before = _files(tmp_path / "checkpoints")
    assert reset.main([str(changing.file), "--to", "committed", "--dry-run"]) == 0
    assert _files(tmp_path / "checkpoints") == before
    topic = changing.topics["a"]
    assert re.sub("kept in .*", "kept", capsys.readouterr().out).splitlines() == [
        "changing.sink would start over",
        f"  a: topic {topic}: partition 0 at 1",
        "  1 row of state is dropped: windows and groups open now will not be written",
        "  the old checkpoint would be kept",
    ]
    assert reset.main([str(changing.file), "--to", "committed", "--json"]) == 0
    (facts,) = json.loads(capsys.readouterr().out)
    assert (facts["state_rows_dropped"], facts["start"]) == (1, {"a": json.dumps({topic: {"0": 1}})})
    assert _files(Path(facts["kept_aside"])).keys() == {
        name.replace(facts["checkpoint"], facts["kept_aside"]) for name in before
    }
    changing.run(UNION, "a b")
    # Source a continues; b is new, and starts with its first record.
    output.wait_for({"page": "1", "n": 1}, {"page": "2"}, {"page": "2"})
    changing.write(UNION, "a=c b")
    before = _files(tmp_path / "checkpoints")
    (refused,) = [report.ways_out for report in dry_run(changing.spark, [load_pipeline(changing.file)])]
    assert [way for way in refused if "--to" in way and "--to earliest" not in way] == []
    assert reset.main([str(changing.file), "--to", "committed"]) == 2
    moved = f"source a read topic {topic} and now reads topic {changing.topics['c']}"
    assert (
        f"{moved}: committed offsets are not valid there: use --to earliest or --to latest" in capsys.readouterr().err
    )
    assert _files(tmp_path / "checkpoints") == before
    changing.write(UNION, "a b")
    assert reset.main([str(changing.file), "--to", f'{{"a": {{"{changing.topics["a"]}": {{"0": 1}}}}}}']) == 0
    changing.run("SELECT page FROM a", "a")
    output.wait_for({"page": "1", "n": 1}, *[{"page": "2"}] * 3)
    output.close()


@pytest.mark.parametrize("scheme", ["", "file://"], ids=["a path", "a URL"])
def test_a_folder_of_checkpoints_works_the_same_by_path_and_by_url(
    spark: SparkSession, tmp_path: Path, scheme: str
) -> None:
    folder = open_folder(f"{scheme}{tmp_path}/counts", spark)
    assert (folder.names(), folder.read("moldau.json")) == ([], None)
    folder.write("moldau.json", "one")
    folder.write("moldau.json", "two – not one")
    folder.write("query/sinks.json", "[]")
    assert (folder.names(), folder.names("query")) == (["moldau.json", "query"], ["sinks.json"])
    assert folder.read("moldau.json") == "two – not one"
    folder.move_to(f"{scheme}{tmp_path}/aside")
    assert (folder.names(), open_folder(f"{scheme}{tmp_path}/aside", spark).read("query/sinks.json")) == ([], "[]")
    folder.write("moldau.json", "three")
    with pytest.raises(ConfigError, match="aside already exists"):
        folder.move_to(f"{scheme}{tmp_path}/aside")
    assert folder.read("moldau.json") == "three"
