"""Options of directories as Spark gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from moldau.pipelines.connectors.base import ReadRequest
from moldau.pipelines.connectors.directory import _spark_options

OPTIONS = {"path": "in", "format": "csv", "header": True, "cleanSource": "archive", "sourceArchiveDir": "done"}


def request(**options: object) -> ReadRequest:
    return ReadRequest(cast(Any, None), "p", "files", OPTIONS | options, folder=Path("/pipelines"))


def test_the_archive_is_below_the_folder_of_the_file_unless_it_is_a_url() -> None:
    assert _spark_options(request(), is_streaming=True) == {
        "header": "true",
        "cleanSource": "archive",
        "sourceArchiveDir": "/pipelines/done",
    }
    found = _spark_options(request(sourceArchiveDir="s3a://shop/done"), is_streaming=True)
    assert found["sourceArchiveDir"] == "s3a://shop/done"


def test_a_batch_has_no_options_of_streams_and_others_are_passed_by_their_own_names() -> None:
    assert _spark_options(request(**{"spark.multiLine": True}), is_streaming=False) == {
        "header": "true",
        "multiLine": "true",
    }
