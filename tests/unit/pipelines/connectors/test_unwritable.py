"""What is said when a sink's files cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from moldau.errors import ConfigError, MoldauError
from moldau.pipelines.connectors.writers.unwritable import writing_to
from moldau.pipelines.engine.checkpoints.folders import open_folder
from moldau.pipelines.engine.reasons import is_external, reason_of

MKDIRS = """An error occurred while calling o2392.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
Caused by: java.io.IOException: Mkdirs failed to create file:/data/out/_moldau/1-out/0 (exists=false, cwd=file:/home)
\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:515)
"""


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (PermissionError(13, "Permission denied", "/data/out"), "Permission denied"),
        (OSError(30, "Cannot create directory '/data/out'. Detail: [errno 30]"), "Read-only file system"),
        (RuntimeError(MKDIRS), "a folder in it cannot be created"),
        (RuntimeError("x\nParent path is not a directory: file:/data\n\tat x"), "Not a directory"),
        (
            RuntimeError("OSError: [Errno 30] Cannot create directory '/data/out'. Detail: Read-only file system"),
            "Read-",
        ),
    ],
)
def test_the_path_the_cause_and_what_to_do_are_said(error: Exception, why: str) -> None:
    with pytest.raises(MoldauError, match=f"^cannot write to /data/out: {why}.*: create the folder, or") as raised:
        _raise_in("/data/out", error)
    assert is_external(raised.value)  # no record is at fault


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        ValueError("Permission denied"),
        RuntimeError("java.io.FileNotFoundException: /elsewhere/in.json (Permission denied)"),
    ],
)
def test_other_errors_stay_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        _raise_in("/data/out", error)
    assert raised.value is error


def test_a_full_disk_is_said_without_advice() -> None:
    with pytest.raises(MoldauError, match=r"^cannot write to /data: No space left on device$"):
        _raise_in("/data", OSError(28, "No space left on device"))


def test_a_checkpoint_below_a_file_needs_a_person(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"cannot write to the checkpoint folder .*/file/out: Not a directory"):
        open_folder(str(tmp_path / "file" / "out")).write("moldau.json", "{}")


def test_what_java_says_is_the_reason_of_a_call_that_failed() -> None:
    text = (
        "An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):\n"
        f'  File "/x/y.py", line 68, in write\npy4j.protocol.Py4JJavaError: {MKDIRS}'
    )
    assert reason_of(RuntimeError(text)).startswith("Mkdirs failed to create file:/data/out")


def _raise_in(path: str, error: Exception) -> None:
    with writing_to(path):
        raise error
