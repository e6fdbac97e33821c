"""HTTP sinks of Aiven and of Confluent, by their keys. Values are sent as they are, or as JSON if they have fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.doors.connect.plugins import ConnectorConfig, Frames, Plugin, PluginKind, SinkParts
from moldau.pipelines.model.kinds import BOOLEAN, Kind, choice, has_reference, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ESCAPES = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\\\": "\\"}
_JSON = "application/json"
_NO_EFFECT = "Accepted without effect."


def any_case(*allowed: str) -> Kind:
    """One of these words, in capital letters or not."""

    def convert(value: object) -> str:
        word = str(value).lower()
        if word not in allowed:
            raise ValueError(f"expected one of {', '.join(allowed)}")
        return word

    return Kind(choice(*allowed).name, convert, {"enum": list(allowed)})


_BACKOFF = Option(
    "retry.backoff.ms", "Pause before the first retry, in milliseconds; it doubles each time.", whole(), default=3000
)
AIVEN_OPTIONS = OptionTable.of(
    Option("http.url", "The URL to send records to.", required=True, example="https://example.com/events"),
    Option("http.authorization.type", "How to authorize.", any_case("none", "static", "oauth2"), required=True),
    Option("http.headers.authorization", "static: the value of the header Authorization.", secret=True),
    Option("http.headers.content.type", "The header Content-Type.", default=_JSON),
    Option("http.headers.additional", "More headers: `name:value`, with commas between."),
    Option("oauth2.access.token.url", "oauth2: where to get a token with client credentials."),
    Option("oauth2.client.id", "oauth2: the client."),
    Option("oauth2.client.secret", "oauth2: its secret.", secret=True),
    Option("oauth2.client.scope", "oauth2: the scope to ask for."),
    Option(
        "oauth2.client.authorization.mode",
        "oauth2: whether the credentials are sent in a header or with the form.",
        any_case("header", "url"),
        default="header",
    ),
    Option("oauth2.response.token.property", "oauth2: the field of the answer with the token.", default="access_token"),
    Option("batching.enabled", "Send several records in a request.", BOOLEAN, default=False),
    Option("batch.max.size", "Most records in a request.", whole(1), default=500),
    Option("batch.prefix", "Begins a request with several records.", default=""),
    Option("batch.suffix", "Ends a request with several records.", default="\n"),
    Option("batch.separator", "Between records.", default="\n"),
    Option("max.retries", "Attempts after the first.", whole(), default=1),
    _BACKOFF,
    Option("http.timeout", "Longest wait for an answer, in seconds.", whole(1), default=30),
    Option("kafka.retry.backoff.ms", f"{_NO_EFFECT} A batch that fails is repeated by the supervisor of its query."),
)

CONFLUENT_OPTIONS = OptionTable.of(
    Option("http.api.url", "The URL to send records to.", required=True, example="https://example.com/events"),
    Option("request.method", "Method of the requests.", any_case("post", "put", "patch"), default="post"),
    Option("request.body.format", "string or json.", any_case("string", "json"), default="string"),
    Option("headers", "Headers: `name:value`, with header.separator between."),
    Option("header.separator", "Between headers.", default="|"),
    Option("auth.type", "How to authorize.", any_case("none", "basic", "oauth2"), default="none"),
    Option("connection.user", "basic: the user."),
    Option("connection.password", "basic: the password.", secret=True),
    Option("oauth2.token.url", "oauth2: where to get a token with client credentials."),
    Option("oauth2.client.id", "oauth2: the client."),
    Option("oauth2.client.secret", "oauth2: its secret.", secret=True),
    Option("oauth2.client.scope", "oauth2: the scope to ask for."),
    Option(
        "oauth2.client.auth.mode",
        "oauth2: whether the credentials are sent in a header or with the form.",
        any_case("header", "url"),
        default="header",
    ),
    Option("oauth2.token.property", "oauth2: the field of the answer with the token.", default="access_token"),
    Option("batch.max.size", "Most records in a request.", whole(1), default=1),
    Option("batch.json.as.array", "Send several records as an array of JSON.", BOOLEAN, default=False),
    Option("batch.prefix", "Begins a request with several records.", default=""),
    Option("batch.suffix", "Ends a request with several records.", default=""),
    Option("batch.separator", "Between records.", default=","),
    Option("max.retries", "Attempts after the first.", whole(), default=10),
    _BACKOFF,
    Option("http.request.timeout.ms", "Longest wait for an answer, in milliseconds.", whole(1), default=30000),
    Option(
        "behavior.on.null.values",
        "What to do with tombstones: ignore or fail.",
        any_case("ignore", "log", "fail"),
        default="ignore",
    ),
    Option(
        "behavior.on.error",
        "What to do if the server refuses a record.",
        any_case("fail", "log", "ignore"),
        default="fail",
    ),
    *(
        Option(name, _NO_EFFECT)
        for name in ("http.connect.timeout.ms", "retry.on.status.codes", "report.errors.as", "reporter.*")
    ),
    Option("confluent.*", _NO_EFFECT),
)

_AIVEN_OAUTH2 = {
    "oauth2.access.token.url": "token url",
    "oauth2.client.id": "client id",
    "oauth2.client.secret": "client secret",
    "oauth2.client.scope": "scope",
    "oauth2.response.token.property": "token property",
}
_CONFLUENT_OAUTH2 = {
    "oauth2.token.url": "token url",
    "oauth2.client.id": "client id",
    "oauth2.client.secret": "client secret",
    "oauth2.client.scope": "scope",
    "oauth2.token.property": "token property",
}
# What each kind of authorization takes, as (Connect's key, the pipeline's option). The first that has no default needs
# to be there, as do the others but for the scope.
_AIVEN_AUTHORIZATION = {"static": {"http.headers.authorization": "authorization header"}, "oauth2": _AIVEN_OAUTH2}
_CONFLUENT_AUTHORIZATION = {
    "basic": {"connection.user": "user", "connection.password": "password"},
    "oauth2": _CONFLUENT_OAUTH2,
}
_OPTIONAL = ("scope", "token property")


def _aiven(config: ConnectorConfig) -> SinkParts:
    values = config.values
    kind = values["http.authorization.type"]
    options = {
        "url": config.unresolved("http.url"),
        "content type": _given(config, "http.headers.content.type"),
        **_authorization(config, kind, _AIVEN_AUTHORIZATION, values["oauth2.client.authorization.mode"]),
        **_headers(config.given.get("http.headers.additional"), ","),
        "timeout": Given(f"{values['http.timeout']} seconds"),
        **_retries(values),
    }
    if values["batching.enabled"]:
        options |= _batch(values, ("batch.prefix", "batch.suffix", "batch.separator"))
    return SinkParts("http", {"format": Given("text"), **options}, value_rows("fail"))


def _confluent(config: ConnectorConfig) -> SinkParts:
    values = config.values
    actions = {"log": "warn"}
    options = {
        "url": config.unresolved("http.api.url"),
        "method": Given(values["request.method"].upper()),
        "content type": Given(_JSON if values["request.body.format"] == "json" else "text/plain; charset=utf-8"),
        **_authorization(config, values["auth.type"], _CONFLUENT_AUTHORIZATION, values["oauth2.client.auth.mode"]),
        **_headers(config.given.get("headers"), values["header.separator"]),
        "timeout": Given(f"{values['http.request.timeout.ms']} ms"),
        "refused rows": Given(actions.get(values["behavior.on.error"], values["behavior.on.error"])),
        **_retries(values),
    }
    if values["batch.max.size"] > 1:
        array = {"batch.prefix": "[", "batch.suffix": "]", "batch.separator": ","}
        given = {**values, **array} if values["batch.json.as.array"] else values
        options |= _batch(given, tuple(array))
    nulls = "fail" if values["behavior.on.null.values"] == "fail" else "ignore"
    return SinkParts("http", {"format": Given("text"), **options}, value_rows(nulls))


def _authorization(
    config: ConnectorConfig, kind: str, keys: Mapping[str, Mapping[str, str]], mode: str
) -> dict[str, Given]:
    found = {option: _given(config, key) for key, option in keys.get(kind, {}).items() if key in config.values}
    if kind == "oauth2":
        found["credentials in"] = Given("header" if mode == "header" else "body")
    return {"authorization": Given(kind), **found}


def _headers(text: str | None, separator: str) -> dict[str, Given]:
    """Text with references, which may be secrets, stays as it is."""
    if not text:
        return {}
    pairs = (pair.partition(":") for pair in text.split(separator) if pair.strip())
    return {"headers": Given({name.strip(): value.strip() for name, _, value in pairs})}


def _retries(values: Mapping[str, Value]) -> dict[str, Given]:
    return {"max retries": Given(values["max.retries"]), "retry backoff": Given(f"{values['retry.backoff.ms']} ms")}


def _batch(values: Mapping[str, Value], keys: Iterable[str]) -> dict[str, Given]:
    texts = {key.replace(".", " "): Given(_unescaped(values[key])) for key in keys}
    return {"batch rows": Given(values["batch.max.size"]), **texts}


def _unescaped(text: str) -> str:
    for written, meant in _ESCAPES.items():
        text = text.replace(written, meant)
    return text


def _given(config: ConnectorConfig, key: str) -> Given:
    """As written, with references; or the default."""
    return config.unresolved(key) if key in config.given else Given(config.values[key])


def value_rows(nulls: str) -> Frames:
    """Records as rows with one column, the value. Tombstones are left out, or fail."""

    def rows(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        value = json_text(frame, "value")
        if nulls == "ignore":
            return frame.where(F.col("value").isNotNull()).select(value.alias("value"))
        failed = F.raise_error(F.lit("the value of a record is null, which this connector cannot write"))
        return frame.select(F.coalesce(value, failed.cast("binary")).alias("value"))

    return rows


def json_text(frame: DataFrame, column: str) -> Column:
    """A column with fields as JSON, another as it is; as bytes."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

    kind = frame.schema[column].dataType
    if isinstance(kind, StructType | MapType | ArrayType):
        return F.to_json(column, {"ignoreNullFields": "false"}).cast("binary")
    return F.col(column) if isinstance(kind, BinaryType) else F.col(column).cast("string").cast("binary")


def _check(
    url: str, kind_key: str, authorization: Mapping[str, Mapping[str, str]]
) -> Callable[[Mapping[str, str]], Iterable[tuple[str, str]]]:
    def check(given: Mapping[str, str]) -> Iterable[tuple[str, str]]:
        address = given.get(url, "")
        if address and not has_reference(address) and not address.startswith(("http://", "https://")):
            yield url, "expected a URL, such as https://example.com/events"
        if "${topic}" in address or "${key}" in address:
            yield url, "templates such as ${topic} are not supported in the URL"
        kind = given.get(kind_key, "none").lower()
        for key, option in authorization.get(kind, {}).items():
            if option not in _OPTIONAL and not given.get(key):
                yield key, f"{kind_key}={kind} needs it"

    return check


PLUGINS = (
    Plugin(
        ("io.aiven.kafka.connect.http.HttpSinkConnector",),
        PluginKind.SINK,
        AIVEN_OPTIONS,
        _aiven,
        _check("http.url", "http.authorization.type", _AIVEN_AUTHORIZATION),
    ),
    Plugin(
        ("io.confluent.connect.http.HttpSinkConnector",),
        PluginKind.SINK,
        CONFLUENT_OPTIONS,
        _confluent,
        _check("http.api.url", "auth.type", _CONFLUENT_AUTHORIZATION),
    ),
)
