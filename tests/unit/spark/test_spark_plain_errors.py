"""Errors that begin with what the user has to know."""

from __future__ import annotations

import io

import pytest
from pyspark.serializers import UTF8Deserializer, read_int
from pyspark.util import handle_worker_exception

from moldau.errors import ConfigError
from moldau.spark.plain_errors import plain_errors


@plain_errors()
def fail(error: Exception) -> None:
    raise error


def sent_to_spark(error: Exception) -> str:
    """What PySpark writes for the JVM."""
    sent = io.BytesIO()
    try:
        fail(error)
    except Exception as raised:
        handle_worker_exception(raised, sent)
    sent.seek(0)
    read_int(sent)
    return str(UTF8Deserializer().loads(sent))


@pytest.fixture
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")  # so that it is as it was when the test is over
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_PORT", "1")


@pytest.mark.usefixtures("_worker")
def test_an_error_of_ours_is_sent_as_one_sentence() -> None:
    assert sent_to_spark(ConfigError("drop the option")) == "moldau.errors.ConfigError: drop the option\n"


@pytest.mark.usefixtures("_worker")
def test_any_other_error_keeps_its_traceback() -> None:
    assert sent_to_spark(KeyError("slip")).startswith("Traceback")


def test_outside_of_sparks_processes_nothing_changes() -> None:
    assert sent_to_spark(ConfigError("drop the option")).startswith("Traceback")
