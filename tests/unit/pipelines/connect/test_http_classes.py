"""Connect's keys for HTTP and search, as options of the pipelines' connectors."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.doors.connect.classes import elasticsearch, http
from moldau.pipelines.doors.connect.plugins import ConnectorConfig, Plugin, SinkParts
from moldau.pipelines.model.options import Given

AIVEN, CONFLUENT = http.PLUGINS
SEARCH, AIVEN_SEARCH = elasticsearch.PLUGINS


def parts(plugin: Plugin, given: dict[str, str]) -> SinkParts:
    values = plugin.options.values({key: Given(text) for key, text in given.items()})
    found = plugin.build(ConnectorConfig("c", given, values))
    assert isinstance(found, SinkParts)
    return found


def built(plugin: Plugin, **given: str) -> dict[str, Any]:
    """The options that differ from the defaults, after the checks of the connector."""
    keys = {key.replace("_", "."): text for key, text in given.items()}
    assert list(plugin.check(keys)) == []
    found = parts(plugin, keys)
    one = connector(found.connector)
    assert one.sink_options is not None
    assert list(one.sink_options.check(found.options, "sink", None)) == []
    assert list(one.check(found.options, is_source=False)) == []
    defaults = {option.name: option.default for option in one.sink_options}
    values = one.sink_options.values(found.options)
    return {name: value for name, value in values.items() if value != defaults[name]}


def test_aivens_keys_become_options() -> None:
    assert built(AIVEN, http_url="http://x", http_authorization_type="none") == {
        "url": "http://x",
        "format": "text",
        "content type": "application/json",
        "max retries": 1,
        "retry backoff": 3000,
    }
    found = built(
        AIVEN,
        http_url="http://x",
        http_authorization_type="static",
        http_headers_authorization="${env:TOKEN}",
        http_headers_additional="a:1, b:x:y",
        http_headers_content_type="text/csv",
        batching_enabled="true",
        batch_separator="\\n",
        batch_prefix="<",
        http_timeout="5",
        max_retries="9",
    )
    assert found["authorization"] == "static"
    assert found["authorization header"] == "${env:TOKEN}"  # resolved when the query starts
    assert found["headers"] == {"a": "1", "b": "x:y"}
    assert found["content type"] == "text/csv"
    assert [found[f"batch {name}"] for name in ("rows", "prefix", "suffix", "separator")] == [500, "<", "\n", "\n"]
    assert (found["timeout"], found["max retries"]) == (5000, 9)


def test_aivens_oauth2() -> None:
    found = built(
        AIVEN,
        http_url="http://x",
        http_authorization_type="oauth2",
        oauth2_access_token_url="http://t",
        oauth2_client_id="me",
        oauth2_client_secret="${file:secrets:x}",
        oauth2_client_authorization_mode="URL",
    )
    assert found["token url"] == "http://t"
    assert found["client secret"] == "${file:secrets:x}"
    assert found["credentials in"] == "body"


def test_confluents_keys_become_options() -> None:
    found = built(
        CONFLUENT,
        http_api_url="http://x",
        request_method="PUT",
        headers="a:1|b:2",
        auth_type="BASIC",
        connection_user="me",
        connection_password="${env:PASSWORD}",
        batch_max_size="10",
        batch_json_as_array="true",
        request_body_format="json",
        behavior_on_error="log",
    )
    assert found["method"] == "PUT"
    assert found["headers"] == {"a": "1", "b": "2"}
    assert (found["user"], found["password"]) == ("me", "${env:PASSWORD}")
    assert [found[f"batch {name}"] for name in ("rows", "prefix", "suffix", "separator")] == [10, "[", "]", ","]
    assert found["refused rows"] == "warn"
    assert found["content type"] == "application/json"


def test_search_keys_become_options() -> None:
    found = built(
        SEARCH,
        connection_url="http://a,http://b",
        connection_username="me",
        connection_password="${env:PASSWORD}",
        batch_size="7",
        behavior_on_malformed_documents="WARN",
        linger_ms="5",
    )
    assert found["url"] == ("http://a", "http://b")
    assert (found["key"], found["version"], found["delete"]) == ("_id", "_version", "_is_delete")
    assert found["batch rows"] == 7
    assert found["malformed documents"] == "warn"
    assert found["password"] == "${env:PASSWORD}"
    upserting = built(SEARCH, connection_url="http://a", write_method="upsert")
    assert upserting["write"] == "upsert"
    assert "version" not in upserting
    stream = built(SEARCH, connection_url="http://a", data_stream_type="LOGS", data_stream_dataset="web")
    assert stream["write"] == "create"
    assert "version" not in stream


def test_the_two_search_connectors_differ_in_what_a_tombstone_does() -> None:
    defaults = [plugin.options.values({})["behavior.on.null.values"] for plugin in (SEARCH, AIVEN_SEARCH)]
    assert defaults == ["fail", "ignore"]


@pytest.mark.parametrize(
    ("plugin", "given", "key"),
    [
        (AIVEN, {"http.url": "here"}, "http.url"),
        (AIVEN, {"http.url": "http://x", "http.authorization.type": "static"}, "http.headers.authorization"),
        (AIVEN, {"http.url": "http://x", "http.authorization.type": "oauth2"}, "oauth2.access.token.url"),
        (CONFLUENT, {"http.api.url": "http://x/${topic}"}, "http.api.url"),
        (CONFLUENT, {"http.api.url": "http://x", "auth.type": "BASIC"}, "connection.user"),
        (SEARCH, {"connection.url": "http://x", "data.stream.type": "logs"}, "data.stream.dataset"),
        (SEARCH, {"connection.username": "me"}, "connection.password"),
        (SEARCH, {"write.method": "UPSERT", "key.ignore": "true"}, "write.method"),
    ],
)
def test_what_the_tables_cannot_say_is_checked(plugin: Plugin, given: dict[str, str], key: str) -> None:
    assert key in [found for found, _ in plugin.check(given)]


def test_secrets_are_known_as_such() -> None:
    for plugin in (*http.PLUGINS, *elasticsearch.PLUGINS):
        for option in plugin.options:
            is_secret = any(word in option.name for word in ("password", "secret", "headers.authorization"))
            assert option.secret == is_secret, option.name
