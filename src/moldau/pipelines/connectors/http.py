"""HTTP: rows as requests to a service, and requests of others (webhooks) as rows.

A webhook is answered when its row is committed downstream, so a sender that repeats what was not answered with 200
loses nothing. A sink repeats the requests of a batch that was interrupted: at least once, in order within a partition.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.base import BatchSink, Connector, ReadRequest, WriteRequest
from moldau.pipelines.connectors.topic import kafka_options, letter_headers
from moldau.pipelines.connectors.writers.http_requests import OAuth2, Target, basic
from moldau.pipelines.model.kinds import BOOLEAN, DURATION, MAPPING, Kind, choice, has_reference, names_of, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from moldau.pipelines.connectors.writers.http_rows import Batching

_METADATA = {"path": "STRING", "headers": "MAP<STRING, STRING>", "received": "TIMESTAMP"}
_VALUE_TYPES = {"text": "STRING", "bytes": "BINARY"}
_MIB = 1024 * 1024
_CONTENT_TYPES = {"json": "application/json", "text": "text/plain; charset=utf-8"}
# How rows of a batch are put together, unless options say otherwise: an array of JSON, or lines of text.
_BATCHES = {"json": ("[", "]", ","), "text": ("", "", "\n")}
_SINGLE = ("", "", "")
_BATCH_OPTIONS = ("batch prefix", "batch suffix", "batch separator")


def _url(value: object) -> str:
    text = str(value)
    if not has_reference(text) and not text.startswith(("http://", "https://")):
        raise ValueError("expected a URL, such as https://example.com/events")
    return text


def _address(value: object) -> tuple[str, int]:
    """Host and port."""
    host, _, port = str(value).rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("expected an address with a port, such as 127.0.0.1:8088")
    return host.strip("[]"), int(port)


URL = Kind("URL", _url, {"type": "string"})
_ADDRESS = Kind("address", _address, {"type": "string"})

# Of all sinks that send requests.
REQUEST_OPTIONS = OptionTable.of(
    Option("headers", "Headers of each request.", MAPPING, example='{X-Team: "shop"}'),
    Option("timeout", "Longest wait for an answer.", DURATION, default=30_000),
    Option("max retries", "Attempts after the first; then the batch fails and is repeated later.", whole(), default=5),
    Option(
        "retry backoff",
        "Pause before the first retry; it doubles each time, up to 30 seconds.",
        DURATION,
        default=1_000,
    ),
    Option("verify", "Check the certificates of HTTPS.", BOOLEAN, default=True),
    Option("certificate authorities", "File with the authorities to trust, in PEM; by default those of the system."),
)


class HttpConnector(Connector):
    name = "http"
    summary = "Rows as HTTP requests; or requests of others (webhooks) as rows, answered when they are committed."
    identity = ("journal",)
    source_options = OptionTable.of(
        Option("listen", "Address and port to listen on.", _ADDRESS, required=True, example="127.0.0.1:8088"),
        Option("path", "Requests to this path and below are rows.", default="/", example="/events"),
        Option(
            "format",
            "text or bytes: the body is the column `value`; json: its fields.",
            choice("text", "bytes", "json"),
            default="text",
        ),
        Option("metadata", "json: columns besides the fields: path, headers, received.", names_of(*_METADATA)),
        Option("user", "Basic authentication: the user that senders have to give."),
        Option("password", "Basic authentication: the password.", secret=True),
        Option("token", "The bearer token that senders have to give.", secret=True),
        Option(
            "timeout", "A request that is not committed after this long is answered with 503.", DURATION, default=30_000
        ),
        Option("max body bytes", "Larger requests are answered with 413.", whole(1), default=_MIB),
        Option("max waiting", "More requests at a time are answered with 429.", whole(1), default=1_000),
        Option("max connections", "More connections are answered with 503.", whole(1), default=2_000),
        Option(
            "max backlog bytes",
            "Requests are answered with 429 while so much is not committed yet.",
            whole(1),
            default=256 * _MIB,
        ),
        Option(
            "journal",
            "Folder where requests are kept until they are committed, on a disk that executors can read, too.",
            default="journals",
        ),
    )
    sink_options = (
        OptionTable.of(
            Option("url", "Where requests are sent to.", URL, required=True, example="https://example.com/events"),
            Option("method", "Method of the requests.", choice("POST", "PUT", "PATCH"), default="POST"),
            Option("format", "json: all columns; text: the column `value`.", choice("text", "json"), default="json"),
            Option("content type", "By default application/json, or text/plain for text."),
            Option("authorization", "How to authorize.", choice("none", "basic", "static", "oauth2"), default="none"),
            Option("user", "basic: the user."),
            Option("password", "basic: the password.", secret=True),
            Option("authorization header", "static: the value of the header Authorization.", secret=True),
            Option("token url", "oauth2: where to get a token with client credentials.", URL),
            Option("client id", "oauth2: the client."),
            Option("client secret", "oauth2: its secret.", secret=True),
            Option("scope", "oauth2: the scope to ask for."),
            Option(
                "credentials in", "oauth2: where the credentials are sent.", choice("header", "body"), default="header"
            ),
            Option("token property", "oauth2: the field of the answer with the token.", default="access_token"),
            Option("batch rows", "Most rows in a request.", whole(1), default=1),
            Option("batch bytes", "About the most bytes in a request with several rows.", whole(1), default=_MIB),
            Option("batch prefix", "Begins a body with several rows: by default `[`, or nothing for text."),
            Option("batch suffix", "Ends a body with several rows: by default `]`, or nothing for text."),
            Option("batch separator", "Between rows: by default a comma, or a line break for text."),
            Option(
                "refused rows",
                "What happens if the server refuses a row (400, 413, 422 and others): fail the batch, so that its "
                "record becomes a dead letter if the settings name a topic for them; or leave it out.",
                choice("fail", "warn", "ignore"),
                default="fail",
            ),
        )
        + REQUEST_OPTIONS
    )
    source_example = "listen: 127.0.0.1:8088\npath: /events\nformat: json\nschema: page STRING, at TIMESTAMP"
    sink_example = "url: https://example.com/events\nbatch rows: 100"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        return _check_source(options) if is_source else _check_sink(options)

    def columns(self, options: Mapping[str, Value]) -> str | None:
        if options["format"] != "json":
            columns = {"value": _VALUE_TYPES[options["format"]]} | _METADATA
            return ", ".join(f"{name} {kind}" for name, kind in columns.items())
        metadata = [f"{name} {_METADATA[name]}" for name in options.get("metadata", ())]
        return ", ".join([options["schema"], *metadata]) if "schema" in options else None

    def read(self, request: ReadRequest) -> DataFrame:
        from moldau.pipelines.connectors.readers.webhook import WebhookSource, WebhookSpec

        options = request.options
        letters = {"errors.tolerance": "skip" if request.skips_bad else "none"}
        if request.dead_letters and options["format"] == "json":
            letters = {
                "errors.deadletterqueue.topic.name": request.dead_letters,
                "errors.deadletterqueue.headers": json.dumps(letter_headers(request)),
                **kafka_options(request),
            }
        host, port = options["listen"]
        query = ".".join(part for part in (request.query, request.name) if part)
        spec = WebhookSpec(
            host=host,
            port=port,
            path=options["path"],
            journal=os.path.abspath(request.folder / options["journal"] / request.pipeline / query),
            format=options["format"],
            schema=options.get("schema"),
            authorization=_authorization_digest(options),
            timeout_ms=options["timeout"],
            body_bytes_max=options["max body bytes"],
            waiting_max=options["max waiting"],
            connections_max=options["max connections"],
            backlog_bytes_max=options["max backlog bytes"],
            errors=letters,
        )
        frame = request.loader(WebhookSource).options(spec=json.dumps(vars(spec))).load()
        return frame.select("value.*", *options.get("metadata", ())) if options["format"] == "json" else frame

    def write(self, request: WriteRequest) -> BatchSink:
        from moldau.pipelines.connectors.writers.http_rows import BODY, HttpRows
        from moldau.pipelines.connectors.writers.refused_rows import RefusedRows

        options = request.options
        refused = RefusedRows(f"{request.checkpoint}/{request.name}", options["refused rows"], (BODY,))
        sender = HttpRows(target_of(options), _batching(options), refused)
        return BatchSink(sender.write, rows=lambda rows: _bodies(rows, options["format"]), trial=refused.trial)


def _check_source(options: Mapping[str, Given]) -> Iterable[Problem]:
    format_name = options.get("format", Given("text")).value
    if format_name == "json" and "schema" not in options:
        yield Problem(
            "format json needs a schema, such as `schema: page STRING, at TIMESTAMP`", options["format"].place
        )
    if format_name in _VALUE_TYPES:
        columns = ", ".join(("value", *_METADATA))
        for name in ("metadata", "schema"):
            if name in options:
                message = f"{name} is for `format: json`: with {format_name} the columns are {columns}"
                yield Problem(message, options[name].place)
    if ("user" in options) != ("password" in options):
        yield Problem("basic authentication needs both `user` and `password`")
    if "token" in options and "user" in options:
        yield Problem("give `token`, or `user` and `password`, but not all of them", options["token"].place)


_NEEDED = {
    "basic": ("user", "password"),
    "static": ("authorization header",),
    "oauth2": ("token url", "client id", "client secret"),
}
_OPTIONS_OF = _NEEDED | {"oauth2": (*_NEEDED["oauth2"], "scope", "credentials in", "token property")}


def _check_sink(options: Mapping[str, Given]) -> Iterable[Problem]:
    kind = options.get("authorization", Given("none")).value
    for name in _NEEDED.get(kind, ()):
        if name not in options:
            yield Problem(f"`authorization: {kind}` needs the option '{name}'", options["authorization"].place)
    for owner, names in _OPTIONS_OF.items():
        for name in names:
            if name in options and kind != owner and not has_reference(kind):
                yield Problem(f"{name} has no effect without `authorization: {owner}`", options[name].place)


def target_of(options: Mapping[str, Value]) -> Target:
    headers = {str(name): str(value) for name, value in options.get("headers", {}).items()}
    headers["Content-Type"] = options.get("content type", _CONTENT_TYPES[options["format"]])
    oauth2 = None
    if options["authorization"] == "static":
        headers["Authorization"] = options["authorization header"]
    if options["authorization"] == "basic":
        headers["Authorization"] = basic(options["user"], options["password"])
    if options["authorization"] == "oauth2":
        oauth2 = OAuth2(
            options["token url"],
            options["client id"],
            options["client secret"],
            options.get("scope", ""),
            options["credentials in"] == "header",
            options["token property"],
        )
    return Target((options["url"],), options["method"], tuple(headers.items()), oauth2, **request_settings(options))


def request_settings(options: Mapping[str, Value]) -> dict[str, Value]:
    """Of REQUEST_OPTIONS, as fields of a Target."""
    return {
        "timeout_s": options["timeout"] / 1000,
        "retries_max": options["max retries"],
        "backoff_s": options["retry backoff"] / 1000,
        "verify": options["verify"] and options.get("certificate authorities", True),
    }


def _batching(options: Mapping[str, Value]) -> Batching:
    from moldau.pipelines.connectors.writers.http_rows import Batching

    texts = _BATCHES[options["format"]] if options["batch rows"] > 1 else _SINGLE
    defaults = zip(_BATCH_OPTIONS, texts, strict=True)
    parts = (options.get(name, default).encode() for name, default in defaults)
    return Batching(options["batch rows"], options["batch bytes"], *parts)


def _bodies(rows: DataFrame, format_name: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    whole_row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
    body = whole_row if format_name == "json" else F.col("value")
    return rows.select(body.cast("binary").alias("body"))


def _authorization_digest(options: Mapping[str, Value]) -> str | None:
    """Of the header that senders have to give: the header itself does not get into Spark's plans."""
    if "token" in options:
        header = f"Bearer {options['token']}"
    elif "user" in options:
        header = basic(options["user"], options["password"])
    else:
        return None
    return hashlib.sha256(header.encode()).hexdigest()
