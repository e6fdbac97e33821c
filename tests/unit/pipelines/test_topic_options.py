"""The topic connector's options, as Spark's data source gets them."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.pipelines.connectors.base import ReadRequest
from moldau.pipelines.connectors.topic import source_options


def request(**more: Any) -> ReadRequest:
    options = {"topic": "clicks"} | more.pop("options", {})
    return ReadRequest(spark=None, pipeline="shop", name="clicks", options=options, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("query", ["counts", "copies"])
def test_each_query_of_a_source_shows_its_positions_in_a_group_of_its_own(query: str) -> None:
    assert source_options(request(query=query))["commitGroupId"] == f"shop.{query}.clicks"


def test_a_group_that_is_given_is_taken() -> None:
    assert source_options(request(query="counts", options={"commitGroupId": "mine"}))["commitGroupId"] == "mine"


def test_a_batch_commits_to_no_group() -> None:
    assert "commitGroupId" not in source_options(request(query="counts", is_streaming=False))


def test_brokers_that_are_away_are_noticed_within_seconds_unless_the_user_is_more_patient() -> None:
    name = "kafka.default.api.timeout.ms"
    assert source_options(request())[name] == "20000"
    assert source_options(request(kafka={name: "90000"}))[name] == "90000"
