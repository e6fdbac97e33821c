"""What answers of HTTP servers mean, when requests are sent again, and which rows are refused. No Spark, no network."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from moldau.errors import MoldauError
from moldau.pipelines.connectors.writers.http_requests import OAuth2, Outcome, Requests, Target, outcome_of, wait_s
from moldau.pipelines.connectors.writers.http_rows import Batching, send_bodies
from moldau.pipelines.connectors.writers.refused_rows import REFUSED_MAX, Refusals

NOW_S = 1_700_000_000.0
LATER = format_datetime(datetime.fromtimestamp(NOW_S + 90, UTC), usegmt=True)
Answers = Callable[[httpx.Request], httpx.Response]


@pytest.mark.parametrize(
    ("outcome", "statuses"),
    [
        (Outcome.DONE, (200, 201, 202, 204)),
        (Outcome.RETRY, (None, 408, 425, 429, 500, 502, 503, 504, 507)),
        (Outcome.FAILED, (301, 302, 401, 403, 404, 405, 407, 410, 501, 505)),
        (Outcome.REFUSED, (400, 406, 409, 411, 412, 413, 415, 422, 431)),
    ],
)
def test_an_answer_means_one_thing(outcome: Outcome, statuses: tuple[int | None, ...]) -> None:
    assert {status: outcome_of(status) for status in statuses} == dict.fromkeys(statuses, outcome)


@pytest.mark.parametrize(
    ("status", "attempt", "retry_after", "seconds"),
    [
        (500, 0, None, 2.0),
        (500, 1, None, 4.0),
        (500, 3, None, 16.0),
        (500, 9, None, 30.0),  # no longer than that
        (None, 0, "7", 2.0),
        (500, 0, "7", 2.0),  # only 429 and 503 say when
        (429, 0, "7", 7.0),
        (503, 4, "7", 7.0),
        (429, 0, "0", 0.0),
        (429, 0, "100000", 300.0),
        (503, 0, LATER, 90.0),
        (429, 1, "soon", 4.0),
    ],
)
def test_the_wait_before_the_next_attempt(
    status: int | None, attempt: int, retry_after: str | None, seconds: float
) -> None:
    assert wait_s(status, attempt, 2.0, retry_after, NOW_S) == pytest.approx(seconds)


class Server:
    """Answers with what a list says, then with 200."""

    def __init__(self, *answers: int | Exception | httpx.Response) -> None:
        self._answers = list(answers)
        self.bodies: list[str] = []
        self.requests: list[httpx.Request] = []
        self.waits_s: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        self.bodies.append(request.content.decode())
        answer = self._answers.pop(0) if self._answers else 200
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else httpx.Response(answer, text=f"said {answer}")

    def sent(self, **target: Any) -> Requests:
        return requests_to(self, self.waits_s.append, **target)


def requests_to(answers: Answers, sleep: Callable[[float], None] = lambda _: None, **target: Any) -> Requests:
    requests = Requests(Target(**{"urls": ("http://u:secret@here/in?token=t",), **target}), sleep)
    requests._client = httpx.Client(transport=httpx.MockTransport(answers))
    return requests


def test_a_request_is_sent_until_it_is_answered() -> None:
    server = Server(httpx.ConnectError("refused"), 500, httpx.Response(429, headers={"Retry-After": "3"}))
    assert server.sent().send(b"row").outcome is Outcome.DONE
    assert server.bodies == ["row"] * 4
    assert 0.5 <= server.waits_s[0] <= 1.0
    assert 1.0 <= server.waits_s[1] <= 2.0
    assert server.waits_s[2] == 3.0


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (Server(*[503] * 3), "cannot write to http://here/in: it answered 503: said 503 (after 3 attempts)"),
        (Server(*[httpx.ReadTimeout("")] * 3), "no answer: the request timed out (after 3 attempts)"),
        (Server(404), "cannot write to http://here/in: it answered 404: said 404"),
        (Server(httpx.Response(403, text="x" * 500)), "it answered 403: " + "x" * 200),
    ],
)
def test_what_cannot_be_sent_says_why_without_secrets(server: Server, message: str) -> None:
    with pytest.raises(MoldauError) as failed:
        server.sent(retries_max=2).send(b"row")
    assert message in str(failed.value)
    assert "secret" not in str(failed.value)
    assert "token" not in str(failed.value)
    assert "x" * 201 not in str(failed.value)


def test_after_a_network_error_the_next_server_is_asked() -> None:
    server = Server(httpx.ConnectError("away"), 200, 200)
    requests = server.sent(urls=("http://one", "http://two"))
    requests.send(b"1", "/_bulk")
    requests.send(b"2", "/_bulk")
    assert [str(request.url) for request in server.requests] == ["http://one/_bulk", *["http://two/_bulk"] * 2]


def test_a_token_is_fetched_once_and_again_when_it_is_refused() -> None:
    tokens = iter(["first", "second"])
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/token":
            assert b"grant_type=client_credentials&scope=all" in request.content
            assert request.headers["Authorization"].startswith("Basic ")
            return httpx.Response(200, json={"access_token": next(tokens), "expires_in": 600})
        seen.append(request.headers["Authorization"])
        return httpx.Response(401 if len(seen) == 3 else 200)

    requests = requests_to(answer, urls=("http://here/in",), oauth2=OAuth2("http://here/token", "me", "secret", "all"))
    for _ in range(3):
        assert requests.send(b"row").outcome is Outcome.DONE
    assert seen == ["Bearer first"] * 3 + ["Bearer second"]


def bodies(*rows: str) -> Iterator[bytes]:
    return iter([row.encode() for row in rows])


@pytest.mark.parametrize(
    ("batching", "sent"),
    [
        (Batching(), ["1", "2", "3333", "4"]),
        (Batching(2, prefix=b"[", suffix=b"]", separator=b","), ["[1,2]", "[3333,4]"]),
        (Batching(9, 4, separator=b"\n"), ["1\n2", "3333", "4"]),
        (Batching(1, prefix=b"<", suffix=b">"), ["<1>", "<2>", "<3333>", "<4>"]),
    ],
)
def test_rows_are_put_together_in_order_up_to_the_limits(batching: Batching, sent: list[str]) -> None:
    server = Server()
    send_bodies(bodies("1", "2", "3333", "4"), server.sent(), batching, Refusals("fail"))
    assert server.bodies == sent


def test_of_a_refused_batch_the_rows_at_fault_are_found() -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(422, text="no number") if b"bad" in request.content else httpx.Response(200)

    refusals = Refusals("fail")
    batching = Batching(3, prefix=b"[", suffix=b"]", separator=b",")
    send_bodies(bodies("1", "bad", "3", "4"), requests_to(answer), batching, refusals)
    assert refusals.found == [(hashlib.sha256(b"bad").hexdigest(), "it answered 422: no number")]


@pytest.mark.parametrize(("action", "sent", "more"), [("fail", REFUSED_MAX, 0), ("warn", 30, 30 - REFUSED_MAX)])
def test_many_refused_rows_end_a_batch_that_fails_anyway(action: str, sent: int, more: int) -> None:
    server = Server(*[400] * 30)
    refusals = send_bodies(bodies(*map(str, range(30))), server.sent(), Batching(), Refusals(action))
    assert len(server.bodies) == sent
    assert (len(refusals.found), refusals.more) == (REFUSED_MAX, more)
    (batch,) = refusals.batches()
    assert sum(batch.column("rows").to_pylist()) == sent


def test_a_token_that_is_not_there_is_told_without_the_answer() -> None:
    server = Server(httpx.Response(200, content=json.dumps({"id_token": "hidden"}).encode()))
    with pytest.raises(MoldauError, match="without 'access_token'") as failed:
        server.sent(oauth2=OAuth2("http://here/token", "me", "secret")).send(b"row")
    assert "hidden" not in str(failed.value)
