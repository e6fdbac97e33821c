"""Kafka Connect's REST interface, and `/pipelines` of our own: one table of routes, thin handlers, plain errors.

A standby answers what can be read and forwards the rest to the active worker. No answer has a traceback, and no
configuration is changed on its way: references stay references.
"""

from __future__ import annotations

import base64
import hmac
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from moldau.errors import ConfigError, KafkaError, MoldauError
from moldau.pipelines.worker.herder import Herder, RestError
from moldau.pipelines.worker.plugin_answers import plugin_config, plugins, validated
from moldau.pipelines.worker.records import Kind, Target
from moldau.version import __version__

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger(__name__)

BODY_BYTES_MAX = 1024 * 1024  # a configuration is a few kilobytes, and has to fit into a record
_FORWARD_S = 90.0  # as long as Connect waits
_INITIAL = {"RUNNING": Target.STARTED, "PAUSED": Target.PAUSED, "STOPPED": Target.STOPPED}
# Kafka's release whose REST interface this is: clients compare it. Ours follows, as a build's suffix does.
KAFKA_VERSION = "4.2.0"
# Python's levels under the names of log4j.
_LEVELS = {"TRACE": 5, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50, "OFF": 100}

Answer = tuple[int, Any]  # status, JSON (None: no body)
Handler = Callable[["Call"], Answer]


class Call:
    """A request, read and checked."""

    def __init__(self, herder: Herder, request: Request, body: bytes) -> None:
        self.herder = herder
        self.query = request.query_params
        self.headers: dict[str, str] = {}  # of the answer
        self._path = request.path_params
        self._body = body

    @property
    def name(self) -> str:
        return str(self._path["name"])

    @property
    def task(self) -> int:
        text = self._path["task"]
        if not text.isdecimal():
            raise RestError(404, f"task {text}: expected a number")
        return int(text)

    def flag(self, name: str) -> bool:
        return self.query.get(name, "false").lower() == "true"

    def json(self, *, numbers_as_text: bool = False) -> Any:
        """`numbers_as_text` keeps 1.0 as "1.0": the values of a configuration are text."""
        more: dict[str, Any] = {"parse_int": str, "parse_float": str} if numbers_as_text else {}
        try:
            return json.loads(self._body, **more)
        except (ValueError, RecursionError) as error:
            raise RestError(400, f"the body is not JSON: {error}") from error

    def fields(self, *known: str) -> dict[str, Any]:
        """The body as an object with some of these fields."""
        return _object(self.json(), known, "the body")

    def config(self, value: Any = None) -> dict[str, str | None]:
        value = self.json(numbers_as_text=True) if value is None else value
        if not isinstance(value, dict):
            raise RestError(400, "a configuration is an object of keys and texts")
        return {key: _config_value(key, each) for key, each in value.items()}


def _object(value: Any, known: tuple[str, ...], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RestError(400, f"{what} must be a JSON object")
    for key in value:
        if known and key not in known:
            raise RestError(400, f"{what} has an unknown field '{key}' (known: {', '.join(known)})")
    return value


def _config_value(key: str, value: Any) -> str | None:
    if isinstance(value, dict | list):
        raise RestError(400, f"the value of '{key}' must be a text")
    return str(value).lower() if isinstance(value, bool) else value


def _whole_config(name: str, config: Mapping[str, str | None]) -> dict[str, str]:
    """With its name, and without nulls."""
    for key, value in config.items():
        if value is None:
            raise RestError(400, f"the value of '{key}' is null: leave the key out")
    included = config.get("name", name)
    if included != name:
        raise RestError(
            400, f"Connector name configuration ({included}) doesn't match connector name in the URL ({name})"
        )
    return {key: str(value) for key, value in config.items()} | {"name": name}


def _root(call: Call) -> Answer:
    return 200, {
        "version": f"{KAFKA_VERSION}-moldau-{__version__}",
        "commit": "moldau",
        "kafka_cluster_id": call.herder.cluster_id,
    }


def _health(call: Call) -> Answer:
    if not call.herder.is_ready:
        return 503, {"status": "starting", "message": "Worker is still starting up."}
    return 200, {"status": "healthy", "message": "Worker has completed startup and is ready to handle requests."}


def _list(call: Call) -> Answer:
    names = call.herder.names()
    if "expand" not in call.query:
        return 200, names
    ways = {"info": call.herder.info, "status": call.herder.status}
    asked = [each for each in call.query.getlist("expand") if each in ways]
    found = {}
    for name in names:
        try:
            found[name] = {each: ways[each](name) for each in asked}
        except RestError:
            continue  # deleted meanwhile
    return 200, found


def _create(call: Call) -> Answer:
    body = _object(call.json(numbers_as_text=True), ("name", "config", "initial_state"), "the body")
    name, given = body.get("name"), body.get("initial_state")
    if not isinstance(name, str) or not isinstance(body.get("config"), dict):
        raise RestError(400, 'the body needs a name and a config: {"name": "…", "config": {…}}')
    target = None
    if given is not None:
        target = _INITIAL.get(str(given).upper())
        if target is None:
            raise RestError(400, f"initial_state {given}: expected {', '.join(_INITIAL)}")
    name = name.strip()
    config = _whole_config(name, call.config(body["config"]))
    _, info = call.herder.put(name, config, target, may_exist=False)
    call.headers["Location"] = f"/connectors/{quote(name, safe='')}"
    return 201, info


def _put_config(call: Call) -> Answer:
    is_new, info = call.herder.put(call.name, _whole_config(call.name, call.config()))
    if is_new:
        call.headers["Location"] = f"/connectors/{quote(call.name, safe='')}"
    return 201 if is_new else 200, info


def _patch_config(call: Call) -> Answer:
    return 200, call.herder.patch(call.name, call.config())


def _target(target: Target, status: int, kind: Kind = Kind.CONNECTOR) -> Handler:
    def handle(call: Call) -> Answer:
        call.herder.set_target(call.name, target, kind)
        return status, None

    return handle


def _restart(call: Call) -> Answer:
    include_tasks, only_failed = call.flag("includeTasks"), call.flag("onlyFailed")
    call.herder.restart(call.name, only_failed=only_failed)
    return (202, call.herder.status(call.name)) if include_tasks or only_failed else (204, None)


def _alter_offsets(call: Call) -> Answer:
    offsets = call.fields("offsets").get("offsets")
    if not isinstance(offsets, list) or not offsets:
        raise RestError(400, "Partitions / offsets need to be provided for an alter offsets request")
    return 200, {"message": call.herder.alter_offsets(call.name, offsets)}


def _loggers(_: Call) -> Answer:
    named = [logging.getLogger(name) for name in ("root", *sorted(logging.root.manager.loggerDict))]
    return 200, {each.name: _level(each) for each in named if each.level}


def _logger(call: Call) -> Answer:
    if call.name != "root" and call.name not in logging.root.manager.loggerDict:
        raise RestError(404, f"Logger {call.name} not found.")
    return 200, _level(logging.getLogger(call.name))


def _level(found: logging.Logger) -> dict[str, Any]:
    level = found.getEffectiveLevel()
    return {"level": next((name for name, number in _LEVELS.items() if number >= level), "OFF"), "last_modified": None}


def _set_logger(call: Call) -> Answer:
    level = call.fields().get("level")
    if level is None:
        raise RestError(400, "Desired 'level' parameter was not specified in request.")
    if str(level).upper() not in _LEVELS:
        raise RestError(404, f"invalid log level '{level}'.")
    logging.getLogger(None if call.name == "root" else call.name).setLevel(_LEVELS[str(level).upper()])
    return 200, [call.name]


def _submit(call: Call) -> Answer:
    body = call.fields("name", "file")
    name, text = body.get("name"), body.get("file")
    if not isinstance(name, str) or not isinstance(text, str):
        raise RestError(400, 'the body needs a name and the text of a pipeline file: {"name": "…", "file": "…"}')
    is_new = call.herder.put_file(name, text)
    call.headers["Location"] = f"/pipelines/{quote(name, safe='')}"
    return 201 if is_new else 200, {"name": name}


def _deleted(kind: Kind) -> Handler:
    def handle(call: Call) -> Answer:
        call.herder.delete(call.name, kind)
        return 204, None

    return handle


def _done(status: int, work: Callable[[Call], object]) -> Handler:
    def handle(call: Call) -> Answer:
        work(call)
        return status, None

    return handle


def _read(work: Callable[[Call], Any]) -> Handler:
    return lambda call: (200, work(call))


_C = "/connectors/{name}"
_P = "/connector-plugins/{name}/config"
# Path, method, whether it is for the active worker alone, handler.
ROUTES: tuple[tuple[str, str, bool, Handler], ...] = (
    ("/", "GET", False, _root),
    ("/health", "GET", False, _health),
    ("/connectors", "GET", False, _list),
    ("/connectors", "POST", True, _create),
    (_C, "GET", False, _read(lambda call: call.herder.info(call.name))),
    (_C, "DELETE", True, _deleted(Kind.CONNECTOR)),
    (f"{_C}/config", "GET", False, _read(lambda call: call.herder.config(call.name))),
    (f"{_C}/config", "PUT", True, _put_config),
    (f"{_C}/config", "PATCH", True, _patch_config),
    (f"{_C}/status", "GET", False, _read(lambda call: call.herder.status(call.name))),
    (f"{_C}/pause", "PUT", True, _target(Target.PAUSED, 202)),
    (f"{_C}/resume", "PUT", True, _target(Target.STARTED, 202)),
    (f"{_C}/stop", "PUT", True, _target(Target.STOPPED, 204)),
    (f"{_C}/restart", "POST", True, _restart),
    (f"{_C}/topics", "GET", False, _read(lambda call: {call.name: {"topics": call.herder.topics(call.name)}})),
    (f"{_C}/topics/reset", "PUT", True, _done(202, lambda call: call.herder.reset_topics(call.name))),
    (f"{_C}/tasks", "GET", False, _read(lambda call: call.herder.tasks(call.name))),
    (f"{_C}/tasks/{{task}}/status", "GET", False, _read(lambda call: call.herder.task_status(call.name, call.task))),
    (f"{_C}/tasks/{{task}}/restart", "POST", True, _done(204, lambda c: c.herder.restart_task(c.name, c.task))),
    (f"{_C}/offsets", "GET", False, _read(lambda call: {"offsets": call.herder.offsets(call.name)})),
    (f"{_C}/offsets", "PATCH", True, _alter_offsets),
    (f"{_C}/offsets", "DELETE", True, _read(lambda call: {"message": call.herder.reset_offsets(call.name)})),
    ("/connector-plugins", "GET", False, _read(lambda call: plugins(call.query.get("connectorsOnly", "true")))),
    (_P, "GET", False, _read(lambda call: plugin_config(call.name))),
    (f"{_P}/validate", "PUT", False, _read(lambda c: validated(c.name, c.config(), c.herder.door.validate))),
    ("/admin/loggers", "GET", False, _loggers),
    ("/admin/loggers/{name}", "GET", False, _logger),
    ("/admin/loggers/{name}", "PUT", False, _set_logger),
    ("/pipelines", "GET", False, _read(lambda call: call.herder.names(Kind.PIPELINE))),
    ("/pipelines", "POST", True, _submit),
    ("/pipelines/{name}", "GET", False, _read(lambda call: call.herder.status(call.name, Kind.PIPELINE))),
    ("/pipelines/{name}", "DELETE", True, _deleted(Kind.PIPELINE)),
    ("/pipelines/{name}/stop", "PUT", True, _target(Target.STOPPED, 204, Kind.PIPELINE)),
    ("/pipelines/{name}/resume", "PUT", True, _target(Target.STARTED, 202, Kind.PIPELINE)),
    ("/pipelines/{name}/logs", "GET", True, _read(lambda call: {"lines": list(call.herder.log(call.name))})),
)


def application(herder: Herder, passwords: Mapping[str, str] | None = None) -> Starlette:
    """`passwords` by user: everybody has to have one then."""
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.routing import Route

    by_path: dict[str, dict[str, tuple[bool, Handler]]] = {}
    for path, method, is_for_active, handler in ROUTES:
        by_path.setdefault(path, {})[method] = is_for_active, handler
    routes = [Route(path, _endpoint(herder, ways, passwords), methods=[*ways]) for path, ways in by_path.items()]

    async def refused(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return _answer(status, {"error_code": status, "message": f"HTTP {status} {_REASONS.get(status, 'Error')}"})

    return Starlette(routes=routes, exception_handlers={HTTPException: refused})


_REASONS = {404: "Not Found", 405: "Method Not Allowed"}


def _endpoint(
    herder: Herder, ways: Mapping[str, tuple[bool, Handler]], passwords: Mapping[str, str] | None
) -> Callable[[Request], Awaitable[Response]]:
    from starlette.concurrency import run_in_threadpool

    async def endpoint(request: Request) -> Response:
        if passwords is not None and not _is_known(request.headers.get("authorization", ""), passwords):
            answer = _error(401, "User cannot access the resource.")
            answer.headers["WWW-Authenticate"] = 'Basic realm="worker"'
            return answer
        try:
            body = await _body(request)
            # Starlette answers HEAD wherever there is a GET.
            is_for_active, handler = ways["GET" if request.method == "HEAD" else request.method]
            if is_for_active and not herder.is_active:
                return await _forward(herder, request, body)
            call = Call(herder, request, body)
            status, value = await run_in_threadpool(handler, call)
        except Exception as error:
            return _failure(error)
        answer = _answer(status, value)
        answer.headers.update(call.headers)
        return answer

    return endpoint


def _failure(error: Exception) -> Response:
    if isinstance(error, RestError):
        return _error(error.status, str(error))
    if isinstance(error, ConfigError):
        return _error(400, str(error))
    if not isinstance(error, MoldauError):
        logger.exception("internal error in the REST interface (please report it)", exc_info=error)
        return _error(500, "internal error: see the log of the worker")
    # Kafka's own: the brokers are not there, or another worker has become active. Both pass.
    return _error(500 if isinstance(error, KafkaError) else 409, str(error))


async def _body(request: Request) -> bytes:
    """Raises RestError if it is too large, or not declared as JSON, which pages of other sites cannot send."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise RestError(413, f"the body has more than {BODY_BYTES_MAX} bytes")
        parts.append(part)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if size and kind != "application/json":
        raise RestError(415, f"Content-Type {kind or 'is missing'}: send JSON with Content-Type: application/json")
    return b"".join(parts)


async def _forward(herder: Herder, request: Request, body: bytes) -> Response:
    import httpx
    from starlette.responses import Response

    url = herder.active_url
    if not url or url == herder.url or request.query_params.get("forward") == "false":
        raise RestError(409, "There is no active worker at the moment: try again")
    kept = {name: value for name, value in request.headers.items() if name in ("content-type", "authorization")}
    query = httpx.QueryParams([*request.query_params.multi_items(), ("forward", "false")])
    try:
        async with httpx.AsyncClient(timeout=_FORWARD_S) as client:
            answer = await client.request(
                request.method, f"{url}{request.url.path}", params=query, content=body, headers=kept
            )
    except httpx.HTTPError as error:
        raise RestError(409, f"The active worker {url} cannot be reached: try again") from error
    shown = {name: value for name, value in answer.headers.items() if name in ("content-type", "location")}
    return Response(answer.content, answer.status_code, shown)


def _is_known(header: str, passwords: Mapping[str, str]) -> bool:
    kind, _, text = header.partition(" ")
    try:
        user, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return False
    wanted = passwords.get(user)
    is_same = hmac.compare_digest((wanted or "").encode(), password.encode())
    return kind.lower() == "basic" and bool(colon) and wanted is not None and is_same


def _error(status: int, message: str) -> Response:
    return _answer(status, {"error_code": status, "message": message})


def _answer(status: int, value: Any) -> Response:
    from starlette.responses import Response

    if value is None:
        return Response(status_code=status)
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Response(text.encode(), status, media_type="application/json")
