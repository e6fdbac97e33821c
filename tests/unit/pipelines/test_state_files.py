"""The files through which `list`, `status` and `stop` know of runs in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from moldau.cli.pipelines import status
from moldau.errors import CommandError, ConfigError
from moldau.pipelines.engine.queries import Settings
from moldau.pipelines.engine.session import common_config, common_master
from moldau.pipelines.engine.state_files import (
    RunFile,
    StateFiles,
    kept_from_running,
    known_runs,
    overall,
    query_facts,
)
from moldau.pipelines.engine.supervisor import RunningQuery, State
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline, Sink

PIPELINE = Pipeline("counts", sinks=(Sink("out", "clicks", "topic"),), file="counts.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOLDAU_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)  # checkpoints are in it
    return tmp_path


def query(state: State) -> RunningQuery:
    plan = cast(Any, type("Plan", (), {"pipeline": PIPELINE, "name": "out"}))
    return RunningQuery(plan, Settings.of(PIPELINE), state, reason="it broke" if state is State.RETRYING else "")


def test_a_run_is_known_while_it_lasts_and_its_end_is_remembered() -> None:
    assert known_runs() == []
    stopped: list[tuple[str, bool]] = []
    file = RunFile(PIPELINE, "checkpoints/counts")
    files = StateFiles({"counts": file}, lambda name, now: stopped.append((name, now)), query_facts)
    files.polled([query(State.RETRYING)])
    (run,) = known_runs()
    assert (run.facts["state"], run.facts["pid"]) == ("RETRYING", os.getpid())
    assert run.facts["queries"][0]["reason"] == "it broke"
    assert run.is_meant_by("counts")
    assert run.is_meant_by("counts.yaml")
    assert not run.is_meant_by("out")

    run.ask_to_stop()
    files.polled([query(State.RUNNING)])
    files.polled([query(State.RUNNING)])
    assert stopped == [("counts", False)]
    run.ask_to_stop(now=True)
    files.polled([query(State.RUNNING)])
    assert stopped[1:] == [("counts", True)]
    assert not run.has_ended()

    files.polled([query(State.STOPPED)])
    assert run.has_ended()
    assert known_runs() == []
    assert [each.facts["state"] for each in known_runs(with_ended=True)] == ["STOPPED"]


def test_a_pipeline_runs_once_per_checkpoint() -> None:
    first = RunFile(PIPELINE, "checkpoints/counts")
    with pytest.raises(CommandError, match=f"counts is already running in process {os.getpid()}: stop it first with"):
        RunFile(PIPELINE, "checkpoints/counts")
    RunFile(PIPELINE, "elsewhere/counts").close()
    first.close()
    RunFile(PIPELINE, "checkpoints/counts").close()


def test_status_shows_what_runs_first_and_the_files_of_pipelines_with_the_same_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = {RunFile(replace(PIPELINE, file=f"{name}/counts.yaml"), f"{name}/counts") for name in "abcde"}
    for file in ended:
        file.write(State.STOPPED, [])
        file.close()
    mine = RunFile(PIPELINE, "checkpoints/counts")
    assert status.main(["counts"]) == 0
    mine.close()
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith(f"counts: STARTING ({folder}/counts.yaml, process {os.getpid()}, started ")
    assert {line.partition(", ")[0] for line in others} == {
        f"counts: STOPPED ({folder}/{at}/counts.yaml" for at in "abcde"
    }


def test_a_process_that_was_killed_is_not_running(folder: Path) -> None:
    script = (
        "import os\n"
        "from moldau.pipelines.engine.state_files import RunFile, State\n"
        "from moldau.pipelines.model.pipeline import Pipeline\n"
        "file = RunFile(Pipeline('counts'), 'c')\n"
        "queries = [{'name': state, 'state': state, 'reason': ''} for state in (State.RUNNING, State.FINISHED)]\n"
        "file.write(State.RUNNING, queries)\n"
        "os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == -9
    assert known_runs() == []
    (run,) = known_runs(with_ended=True)
    assert (run.facts["state"], run.facts["reason"]) == ("STOPPED", "the process was killed")
    assert [query["state"] for query in run.facts["queries"]] == ["STOPPED", "FINISHED"]
    RunFile(Pipeline("counts"), "c").close()


def test_a_pipeline_that_is_kept_from_running_still_says_how_its_last_run_ended() -> None:
    last = RunFile(PIPELINE, "c")
    with pytest.raises(CommandError, match="already running"), kept_from_running(PIPELINE, "c"):
        pass
    last.write(State.FINISHED, [])
    last.close()
    with kept_from_running(PIPELINE, "c"), pytest.raises(CommandError, match="already running"):
        RunFile(PIPELINE, "c")
    (run,) = known_runs(with_ended=True)
    assert run.facts["state"] == State.FINISHED


def test_the_state_of_a_pipeline_is_the_worst_of_its_queries() -> None:
    assert overall([State.RUNNING, State.RETRYING]) is State.RETRYING
    assert overall([State.RUNNING, State.FAILED, State.FINISHED]) is State.FAILED
    assert overall([State.FINISHED, State.RUNNING]) is State.RUNNING


def settings(**values: object) -> Settings:
    return Settings.of(Pipeline("x", settings={name: Given(value) for name, value in values.items()}))


def test_pipelines_of_one_run_agree_on_the_master_and_on_settings_of_the_session() -> None:
    agreed = {"a": settings(master="local[2]"), "b": settings(master="local[2]")}
    assert common_master(agreed) == "local[2]"
    with pytest.raises(ConfigError, match=r"a and b have different values for master: .* or choose one with --master"):
        common_master(agreed | {"b": settings(master="yarn")})
    own = {"spark.sql.shuffle.partitions": 4, "spark.driver.memory": "2g"}
    assert common_config({"a": settings(spark=own)}) == {"spark.driver.memory": "2g"}
    with pytest.raises(ConfigError, match=r"a and b have different values for spark.driver.memory: ") as raised:
        common_config({"a": settings(spark=own), "b": settings(spark={"spark.driver.memory": "4g"})})
    assert "4g" not in str(raised.value)  # it may be a secret


def test_a_checkpoint_is_locked_for_those_with_another_state_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = RunFile(PIPELINE, str(folder / "checkpoints" / "counts"))
    monkeypatch.setenv("MOLDAU_STATE_DIR", str(folder / "another"))
    for checkpoint in (f"{folder}/checkpoints/counts", f"file://{folder}/checkpoints/counts"):
        with pytest.raises(CommandError, match="another process runs pipeline counts with the checkpoint"):
            RunFile(PIPELINE, checkpoint)
    first.close()
    RunFile(PIPELINE, str(folder / "checkpoints" / "counts")).close()


def test_a_checkpoint_that_cannot_be_locked_is_told(caplog: pytest.LogCaptureFixture) -> None:
    RunFile(PIPELINE, "checkpoints/counts").close()
    assert caplog.messages == []
    RunFile(PIPELINE, "s3a://bucket/checkpoints/counts").close()
    (message,) = caplog.messages
    assert message.startswith("pipeline counts: checkpoints on s3a:// have no lock: make sure that only one machine")
