"""Bulk requests of search servers and their answers, item by item. No Spark, no network."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from moldau.errors import MoldauError
from moldau.pipelines.connectors.writers.http_requests import Outcome
from moldau.pipelines.connectors.writers.refused_rows import Refusals
from moldau.pipelines.connectors.writers.search_bulk import Bulk, Item, item_outcome, send_items
from tests.unit.pipelines.connect.test_http_requests import requests_to


def item(id: str | None = "1", document: str | None = '{"n": 1}', **more: Any) -> Item:
    return Item(**{"target": "t", "id": id, "version": None, "is_delete": False, "document": document, **more})


@pytest.mark.parametrize(
    ("mode", "one", "lines"),
    [
        ("index", item(), ['{"index": {"_index": "t", "_id": "1"}}', '{"n": 1}']),
        ("index", item(None), ['{"index": {"_index": "t"}}', '{"n": 1}']),
        (
            "index",
            item(version=7),
            ['{"index": {"_index": "t", "_id": "1", "version": 7, "version_type": "external"}}', '{"n": 1}'],
        ),
        ("create", item(), ['{"create": {"_index": "t", "_id": "1"}}', '{"n": 1}']),
        (
            "upsert",
            item(),
            ['{"update": {"_index": "t", "_id": "1"}}', '{"doc": {"n": 1}, "doc_as_upsert": true}'],
        ),
        ("upsert", item(document=None, is_delete=True), ['{"delete": {"_index": "t", "_id": "1"}}']),
        ("index", item(document='{\r\n "n": 1\n}'), ['{"index": {"_index": "t", "_id": "1"}}', '{   "n": 1 }']),
    ],
)
def test_an_item_is_an_action_and_a_document_on_a_line_each(mode: str, one: Item, lines: list[str]) -> None:
    assert Bulk(mode).body([one]).decode() == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize(
    ("action", "status", "has_version", "outcome"),
    [
        ("index", 201, False, Outcome.DONE),
        ("index", 409, True, Outcome.DONE),  # a newer version is there
        ("delete", 409, True, Outcome.DONE),
        ("delete", 404, False, Outcome.DONE),
        ("create", 409, False, Outcome.DONE),  # it was created before
        ("update", 409, False, Outcome.RETRY),
        ("index", 429, True, Outcome.RETRY),
        ("index", 503, False, Outcome.RETRY),
        ("index", 400, False, Outcome.REFUSED),
        ("index", 404, False, Outcome.FAILED),  # no such index, and none may be made
        ("index", 403, False, Outcome.FAILED),
    ],
)
def test_each_item_has_an_outcome(action: str, status: int, has_version: bool, outcome: Outcome) -> None:
    assert item_outcome(action, status, has_version=has_version) is outcome


def test_an_id_is_once_in_a_request_unless_it_has_versions() -> None:
    ids = ["1", "2", "1", "3", "1"]
    without = Bulk().requests(item(one) for one in ids)
    assert [[one.id for one in request] for request in without] == [["1", "2"], ["1", "3"], ["1"]]
    versioned = Bulk().requests(item(one, version=number) for number, one in enumerate(ids))
    assert [len(request) for request in versioned] == [5]
    assert [len(request) for request in Bulk(rows_max=2).requests(item(str(n)) for n in range(5))] == [2, 2, 1]
    assert [len(request) for request in Bulk(bytes_max=250).requests(item(None) for _ in range(5))] == [2, 2, 1]


class Server:
    """Answers each request with the statuses of its items."""

    def __init__(self, *answers: int | dict[str, int]) -> None:
        self._answers = list(answers)
        self.ids: list[list[str]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        actions = [json.loads(line) for line in request.content.splitlines() if b"_index" in line]
        heads = [next(iter(action.items())) for action in actions]
        self.ids.append([head["_id"] for _, head in heads])
        answer = self._answers.pop(0) if self._answers else {}
        if isinstance(answer, int):
            return httpx.Response(answer, text="as a whole")
        statuses = [(name, answer.get(head["_id"], 200)) for name, head in heads]
        error = {"type": "mapper_parsing_exception", "reason": "no number", "caused_by": {"reason": "it is text"}}
        items = [{name: {"status": status} | ({"error": error} if status > 299 else {})} for name, status in statuses]
        return httpx.Response(200, json={"errors": any(status > 299 for _, status in statuses), "items": items})


def sent(server: Server, *ids: str, **bulk: Any) -> Refusals:
    return send_items((item(one) for one in ids), requests_to(server), Bulk(**bulk), Refusals("fail"))


def test_only_what_was_not_written_is_sent_again() -> None:
    server = Server({"2": 429, "3": 503}, {"3": 429}, {})
    assert sent(server, "1", "2", "3").found == []
    assert server.ids == [["1", "2", "3"], ["2", "3"], ["3"]]


def test_a_refused_document_leaves_the_others_alone() -> None:
    server = Server({"2": 400})
    refused = sent(server, "1", "2", "3").found
    assert refused == [
        (item("2").digest, "document 2 of t: it answered 400: mapper_parsing_exception: no number (it is text)")
    ]


def test_a_request_that_is_too_large_is_divided() -> None:
    server = Server(413, 413, {}, 413)
    assert sent(server, "1", "2", "3", "4").found == [(item("2").digest, "it answered 413: as a whole")]
    assert server.ids == [["1", "2", "3", "4"], ["1", "2"], ["1"], ["2"], ["3", "4"]]


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(401), "it answered 401"),
        (Server({"1": 404}), "document 1 of t: it answered 404"),
        (Server(*[{"1": 429}] * 9), r"document 1 of t: it answered 429: .* \(after 6 attempts\)"),
    ],
)
def test_what_no_row_is_at_fault_for_fails(server: Server, message: str) -> None:
    with pytest.raises(MoldauError, match=message):
        sent(server, "1")
