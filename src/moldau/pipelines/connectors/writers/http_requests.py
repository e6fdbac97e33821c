"""Requests of sinks over HTTP: what an answer means, when to try again, and how to authorize.

| answer                                    | means                                                                  |
|-------------------------------------------|------------------------------------------------------------------------|
| 2xx                                       | done                                                                   |
| none (network, timeout), 408, 425, 429, 5xx | try again; 429 and 503 may say when (Retry-After)                    |
| 3xx, 401, 403, 404, 405 and the like      | the endpoint or its options are wrong: no record is at fault           |
| other 4xx                                 | the server refuses these rows                                          |

A client is kept with its connections for as long as Spark keeps the Python process, that is over many micro-batches.
"""

from __future__ import annotations

import base64
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from moldau.clocks import wall_clock_ms
from moldau.errors import MoldauError

if TYPE_CHECKING:
    import httpx

_RETRIED = frozenset({408, 425, 429})
_LASTING_5XX = frozenset({501, 505})  # the server will never be able to
_OF_THE_ENDPOINT = frozenset({401, 402, 403, 404, 405, 407, 410, 421, 426, 451})
_SAYS_WHEN = frozenset({429, 503})
RETRY_AFTER_MAX_S = 300.0  # a server that asks for more is asked again before
_BACKOFF_MAX_S = 30.0
_ANSWER_CHARACTERS_MAX = 200
_TOKEN_LEEWAY_S = 30.0
_TOKEN_LIFE_S = 3600.0  # if the answer does not say
_CLIENTS_MAX = 16


class Outcome(Enum):
    DONE = "done"
    RETRY = "retry"
    REFUSED = "refused"
    FAILED = "failed"


def outcome_of(status: int | None) -> Outcome:
    """`status` is None if there was no answer."""
    if status is None or status in _RETRIED or (status >= 500 and status not in _LASTING_5XX):
        return Outcome.RETRY
    if 200 <= status < 300:
        return Outcome.DONE
    if status < 400 or status >= 500 or status in _OF_THE_ENDPOINT:
        return Outcome.FAILED
    return Outcome.REFUSED


def wait_s(status: int | None, attempt: int, backoff_s: float, retry_after: str | None, now_s: float) -> float:
    """How long to wait after this attempt, the first of which is 0."""
    asked = _asked_wait_s(retry_after, now_s) if status in _SAYS_WHEN else None
    if asked is not None:
        return min(asked, RETRY_AFTER_MAX_S)
    return min(backoff_s * 2.0 ** min(attempt, 20), max(_BACKOFF_MAX_S, backoff_s))


def _asked_wait_s(text: str | None, now_s: float) -> float | None:
    """Retry-After has seconds or a date."""
    if text is None:
        return None
    if text.strip().isdigit():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - now_s, 0.0)
    except ValueError:
        return None


@dataclass(frozen=True)
class OAuth2:
    """Client credentials."""

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    is_in_header: bool = True  # where the credentials are sent; else in the body
    token_property: str = "access_token"


@dataclass(frozen=True)
class Target:
    """Where requests go, and how. It is sent to tasks, so it is plain data."""

    urls: tuple[str, ...]  # of the same service: after a network error the next one is asked
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    oauth2: OAuth2 | None = None
    timeout_s: float = 30.0
    retries_max: int = 5
    backoff_s: float = 1.0
    verify: bool | str = True  # TLS certificates; a path is that of the authorities to trust


@dataclass(frozen=True)
class Answer:
    outcome: Outcome
    content: bytes
    text: str  # what was answered, for messages
    status: int | None = None
    retry_after: str | None = None


class Requests:
    """Sends requests of one task after the other."""

    def __init__(self, target: Target, sleep: Callable[[float], None] = time.sleep) -> None:
        import httpx

        self.target = target
        self._sleep = sleep
        verify = _trusting(target.verify) if isinstance(target.verify, str) else target.verify
        self._client = httpx.Client(headers=dict(target.headers), timeout=target.timeout_s, verify=verify)
        self._errors = (httpx.TransportError, httpx.TooManyRedirects)
        self._number = 0
        self._token, self._token_until = "", 0.0

    def send(self, content: bytes, path: str = "") -> Answer:
        """DONE or REFUSED. Raises MoldauError for anything else, after all attempts."""
        answer = self.try_send(content, path)
        attempt = 0
        while answer.outcome is Outcome.RETRY:
            self.pause(attempt, answer)
            attempt += 1
            answer = self.try_send(content, path)
        if answer.outcome is Outcome.FAILED:
            raise MoldauError(f"cannot write to {self.shown_url}: {answer.text}")
        return answer

    def try_send(self, content: bytes, path: str = "") -> Answer:
        response = self._answered(content, path)
        if not isinstance(response, str) and response.status_code == 401 and self.target.oauth2 and self._token:
            self._token = ""  # it may have been revoked
            response = self._answered(content, path)
        if isinstance(response, str):
            self._number += 1
            return Answer(Outcome.RETRY, b"", response)
        status = response.status_code
        text = f"it answered {status}: {_start_of(response.text)}".removesuffix(": ")
        return Answer(outcome_of(status), response.content, text, status, response.headers.get("retry-after"))

    def pause(self, attempt: int, answer: Answer) -> None:
        """Before the next attempt. Raises MoldauError if there is none left."""
        if attempt >= self.target.retries_max:
            raise MoldauError(f"cannot write to {self.shown_url}: {answer.text} (after {attempt + 1} attempts)")
        seconds = wait_s(answer.status, attempt, self.target.backoff_s, answer.retry_after, wall_clock_ms() / 1000)
        is_asked = answer.retry_after is not None and answer.status in _SAYS_WHEN
        # Tasks that failed together do not come back together.
        self._sleep(seconds if is_asked else seconds * random.uniform(0.5, 1.0))

    @property
    def shown_url(self) -> str:
        """Without user, password and query, which may be secrets."""
        import httpx

        return str(httpx.URL(self._url).copy_with(userinfo=b"", query=None, fragment=None))

    @property
    def _url(self) -> str:
        return self.target.urls[self._number % len(self.target.urls)]

    def _answered(self, content: bytes, path: str) -> httpx.Response | str:
        """The answer, or why there is none."""
        try:
            url = self._url.rstrip("/") + path if path else self._url
            return self._client.request(self.target.method, url, content=content, headers=self._authorization())
        except self._errors as error:
            return _why(error)

    def _authorization(self) -> dict[str, str]:
        if self.target.oauth2 is None:
            return {}
        if not self._token or time.monotonic() >= self._token_until:
            self._token, life_s = self._new_token(self.target.oauth2)
            self._token_until = time.monotonic() + max(life_s - _TOKEN_LEEWAY_S, 0.0)
        return {"Authorization": f"Bearer {self._token}"}

    def _new_token(self, oauth2: OAuth2) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"} | ({"scope": oauth2.scope} if oauth2.scope else {})
        headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
        if oauth2.is_in_header:
            headers["Authorization"] = basic(oauth2.client_id, oauth2.client_secret)
        else:
            form |= {"client_id": oauth2.client_id, "client_secret": oauth2.client_secret}
        answer = self._client.post(oauth2.token_url, data=form, headers=headers)
        try:
            found: Any = answer.json()
            return str(found[oauth2.token_property]), float(found.get("expires_in") or _TOKEN_LIFE_S)
        except (ValueError, TypeError, KeyError):
            # Not the answer's text: it may have a token under another name.
            raise MoldauError(
                f"cannot write to {self.shown_url}: no access token: {oauth2.token_url} answered {answer.status_code} "
                f"without '{oauth2.token_property}'"
            ) from None


def basic(user: str, password: str) -> str:
    """The header of basic authentication."""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@lru_cache(maxsize=_CLIENTS_MAX)
def requests_to(target: Target) -> Requests:
    """The client of this process."""
    return Requests(target)


def _trusting(path: str) -> Any:
    import ssl

    return ssl.create_default_context(cafile=path)


def _start_of(text: str) -> str:
    return " ".join(text.split())[:_ANSWER_CHARACTERS_MAX]


def _why(error: Exception) -> str:
    """httpx leaves the text of some errors empty."""
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return "no answer: the request timed out"
    return f"no answer: {error or type(error).__name__}"
