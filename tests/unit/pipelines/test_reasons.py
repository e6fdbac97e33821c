"""What a person reads when a query fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.engine.reasons import is_external, is_lasting, reason_of
from moldau.pipelines.model import references
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.references import resolve

UNREACHABLE = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: moldau.errors.KafkaError: No broker could be reached: cannot connect to 127.0.0.1:1: Connection refused
 SQLSTATE: 38000
=== Streaming Query ===
Identifier: [id = 0f97e073]
Current State: ACTIVE"""
OF_A_FUNCTION = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/home/me/pipelines/marks.py", line 31, in mark
    return 1 // 0
           ~^^~
ZeroDivisionError: integer division or modulo by zero
 SQLSTATE: 39000
=== Streaming Query ===
Identifier: [id = 25569c6c]"""
RAISED = """[USER_RAISED_EXCEPTION] expectation x of y failed: a > 1 SQLSTATE: P0001
=== Streaming Query ===
Identifier: [id = 25569c6c]"""
OF_A_TASK = """Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times, most recent failure: Lost task \
0.0 in stage 1.0 (TID 1) (127.0.0.1 executor driver): java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (UNREACHABLE, "No broker could be reached: cannot connect to 127.0.0.1:1: Connection refused"),
        (OF_A_FUNCTION, "ZeroDivisionError: integer division or modulo by zero (marks.py, line 31)"),
        (RAISED, "expectation x of y failed: a > 1"),
        (OF_A_TASK, "No space left on device"),
        ("", "RuntimeError"),
    ],
    ids=["broker away", "function", "raised", "task", "no words"],
)
def test_a_reason_is_one_sentence_without_stacks_and_classes(text: str, reason: str) -> None:
    assert reason_of(RuntimeError(text)) == reason


def test_our_own_errors_are_told_as_they_are() -> None:
    assert reason_of(ConfigError("clicks.yaml:3:1: step counts:\n  no such column")) == (
        "clicks.yaml:3:1: step counts: no such column"
    )


def test_ways_out_are_told_to_their_end() -> None:
    text = f"the checkpoint does not fit: {'changed, ' * 100}`moldau pipeline reset counts.yaml --query counts`"
    assert reason_of(ConfigError(text)) == text
    assert reason_of(RuntimeError(f"Job aborted: moldau.errors.ConfigError: {text}")) == text
    assert reason_of(RuntimeError(text)).endswith("…")


def test_a_broker_that_is_away_and_a_full_disk_are_not_the_fault_of_records() -> None:
    assert is_external(RuntimeError(UNREACHABLE))
    assert is_external(RuntimeError(OF_A_TASK))
    assert not is_external(RuntimeError(OF_A_FUNCTION))


@pytest.fixture(autouse=True)
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of references in other tests."""
    monkeypatch.setattr(references, "_looked_up", {})


def test_what_references_stand_for_is_not_in_reasons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REASON_HOST", "hidden-host-71")
    (tmp_path / "secrets").write_text("word=open sesame 71\n")
    given = ("${env:REASON_HOST:other}:9092", "${file:secrets:word}", "${env:REASON_ABSENT:said-in-file}")
    resolve({str(number): Given(value) for number, value in enumerate(given)}, tmp_path)
    assert (
        reason_of(RuntimeError("hidden-host-71:9092 refused open sesame 71 of said-in-file"))
        == "${env:REASON_HOST}:9092 refused ${file:secrets:word} of said-in-file"
    )
    place = "hidden-host-71.yaml:1:2: "
    assert reason_of(ConfigError(f"{place}hidden-host-71")) == f"{place}${{env:REASON_HOST}}"
    long = reason_of(ConfigError("x" * 390 + "hidden-host-71"))
    assert "hidden" not in long  # not even a part of it, at the cut


def test_a_function_that_exits_is_a_mistake() -> None:
    assert reason_of(SystemExit(3)) == "a Python function of the pipeline called sys.exit(3)"
    assert is_lasting(SystemExit(3))
