"""One connection: versions are agreed on, answers are matched, and trouble is said in words."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from moldau.client.config import ClientConfig
from moldau.client.connection import Connection, to_error
from moldau.errors import ConfigError, ErrorCode, KafkaError, ProtocolError
from moldau.wire.apis import ApiKey
from moldau.wire.messages import error, ms
from tests.unit.client.fake_broker import FakeBroker, metadata_answer

MakeBroker = Callable[..., FakeBroker]


def _log_dirs_answer(schema: Any, request: Any) -> Any:
    return schema.DescribeLogDirsResponse(throttle_time=ms(0), error_code=error(0), results=())


def _connect(broker: FakeBroker, **properties: str) -> Connection:
    return Connection("127.0.0.1", broker.port, broker.config(**properties))


def test_the_highest_common_version_is_used(fake_broker: MakeBroker) -> None:
    broker = fake_broker({ApiKey.DESCRIBE_LOG_DIRS: _log_dirs_answer}, versions={ApiKey.DESCRIBE_LOG_DIRS: (0, 2)})
    with _connect(broker) as connection:
        assert connection.version_of(ApiKey.DESCRIBE_LOG_DIRS) == 2
        connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None))
    assert [version for _, version, _ in broker.requests] == [2]


def test_an_old_broker_that_refuses_our_api_versions_is_asked_again_in_its_own(fake_broker: MakeBroker) -> None:
    broker = fake_broker({}, versions={ApiKey.API_VERSIONS: (0, 1), ApiKey.METADATA: (0, 4)})
    with _connect(broker) as connection:
        assert connection.versions == {ApiKey.API_VERSIONS: (0, 1), ApiKey.METADATA: (0, 4)}


def test_an_api_the_broker_lacks_is_refused_by_name(fake_broker: MakeBroker) -> None:
    with _connect(fake_broker({})) as connection, pytest.raises(KafkaError, match="DescribeLogDirs") as caught:
        connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None))
    assert caught.value.code == ErrorCode.UNSUPPORTED_VERSION


def test_versions_that_do_not_overlap_are_no_version(fake_broker: MakeBroker) -> None:
    broker = fake_broker({}, versions={ApiKey.DESCRIBE_LOG_DIRS: (99, 100)})
    with _connect(broker) as connection:
        assert connection.version_of(ApiKey.DESCRIBE_LOG_DIRS) is None


def test_a_refused_connection_says_where(fake_broker: MakeBroker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(KafkaError, match=rf"cannot connect to 127\.0\.0\.1:{port}: Connection refused"):
        Connection("127.0.0.1", port, ClientConfig.from_properties(f"127.0.0.1:{port}", {}))


def test_a_broker_that_hangs_up_is_a_network_error(fake_broker: MakeBroker) -> None:
    broker = fake_broker({ApiKey.DESCRIBE_LOG_DIRS: lambda schema, request: None})
    with _connect(broker) as connection, pytest.raises(KafkaError, match="closed by the broker") as caught:
        connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None))
    assert caught.value.code == ErrorCode.NETWORK_EXCEPTION


def test_a_silent_broker_is_given_up_after_the_request_timeout(fake_broker: MakeBroker) -> None:
    asked, done = threading.Event(), threading.Event()

    def never(schema: Any, request: Any) -> None:
        asked.set()
        done.wait()

    broker = fake_broker({ApiKey.DESCRIBE_LOG_DIRS: never})
    with _connect(broker, request_timeout_ms="50") as connection:
        with pytest.raises(KafkaError, match="within 50 ms") as caught:
            connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None))
        assert asked.wait(10)
        done.set()
    assert caught.value.code == ErrorCode.REQUEST_TIMED_OUT


@pytest.mark.parametrize(
    ("said", "kind", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError, "is an HTTP server, not a Kafka broker"),
        (b"-ERR unknown command\r\n", ProtocolError, r":\d+ is not a Kafka broker: check the port"),
        (b"\x15\x03\x03\x00\x02\x02\x50", ConfigError, r"uses TLS: set security\.protocol=SSL"),
        (b"", KafkaError, r"check that this is a Kafka port, and if it uses TLS, set security\.protocol=SSL"),
    ],
)
def test_a_port_that_does_not_speak_kafka_is_told_at_once(said: bytes, kind: type[Exception], why: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(kind, match=why):
            Connection("127.0.0.1", port, ClientConfig.from_properties(f"127.0.0.1:{port}", {}))
        thread.join()


def test_a_port_that_keeps_silent_is_given_up_by_tls_after_the_connection_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        props = {"security.protocol": "SSL", "socket.connection.setup.timeout.ms": "50"}
        with pytest.raises(KafkaError, match=r"timed out.*set security\.protocol=PLAINTEXT") as caught:
            Connection("127.0.0.1", port, ClientConfig.from_properties(f"127.0.0.1:{port}", props))
    assert caught.value.code == ErrorCode.NETWORK_EXCEPTION


SASL = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "alice"}


def _sasl_answers(lifetime_ms: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> dict[int, Any]:
    """A broker whose only user is alice, with the password "secret"."""

    def handshake(schema: Any, request: Any) -> Any:
        code = 0 if request.mechanism in mechanisms else 33
        return schema.SaslHandshakeResponse(error_code=error(code), mechanisms=mechanisms)

    def authenticate(schema: Any, request: Any) -> Any:
        is_right = request.auth_bytes == b"\0alice\0secret"
        return schema.SaslAuthenticateResponse(
            error_code=error(0 if is_right else 58),
            error_message=None if is_right else "wrong password",
            auth_bytes=b"",
            session_lifetime=ms(lifetime_ms),
        )

    return {
        ApiKey.SASL_HANDSHAKE: handshake,
        ApiKey.SASL_AUTHENTICATE: authenticate,
        ApiKey.DESCRIBE_LOG_DIRS: _log_dirs_answer,
    }


def test_sasl_plain_is_spoken_before_anything_else(fake_broker: MakeBroker) -> None:
    broker = fake_broker(_sasl_answers())
    with _connect(broker, **SASL, sasl_password="secret") as connection:
        for _ in range(3):
            connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None))
    assert [key for key, _, _ in broker.requests] == [
        ApiKey.SASL_HANDSHAKE,
        ApiKey.SASL_AUTHENTICATE,
        *[ApiKey.DESCRIBE_LOG_DIRS] * 3,
    ]


def test_a_session_that_ends_is_renewed_before_the_next_request(fake_broker: MakeBroker) -> None:
    broker = fake_broker(_sasl_answers(lifetime_ms=1))
    with _connect(broker, **SASL, sasl_password="secret") as connection:
        time.sleep(0.001)
        connection.send(ApiKey.DESCRIBE_LOG_DIRS, lambda schema: schema.DescribeLogDirsRequest(topics=None))
    renewed = [ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE]
    assert [key for key, _, _ in broker.requests] == [*renewed, *renewed, ApiKey.DESCRIBE_LOG_DIRS]


def test_a_broker_that_knows_no_session_lifetimes_is_served_too(fake_broker: MakeBroker) -> None:
    broker = fake_broker(_sasl_answers(), versions={ApiKey.SASL_AUTHENTICATE: (0, 0)})
    _connect(broker, **SASL, sasl_password="secret").close()


def test_a_wrong_password_is_told_without_it(fake_broker: MakeBroker) -> None:
    with pytest.raises(KafkaError, match=r"rejected user 'alice' \(wrong password\)") as caught:
        _connect(fake_broker(_sasl_answers()), **SASL, sasl_password="guess")
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "guess" not in str(caught.value)


def test_a_mechanism_the_broker_lacks_names_those_it_has(fake_broker: MakeBroker) -> None:
    broker = fake_broker(_sasl_answers(mechanisms=("SCRAM-SHA-256",)))
    with pytest.raises(KafkaError, match=r"set sasl\.mechanism to one of: SCRAM-SHA-256"):
        _connect(broker, **SASL, sasl_password="secret")


def test_sasl_where_there_is_none_is_told(fake_broker: MakeBroker) -> None:
    with pytest.raises(KafkaError, match=r"does not use SASL: set security\.protocol=PLAINTEXT"):
        _connect(fake_broker({}), **SASL, sasl_password="secret")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sasl_mechanism": "OAUTHBEARER"}, "expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        ({"sasl_mechanism": ""}, r"not set"),
        ({"sasl_username": ""}, r"sasl\.jaas\.config"),
        ({"sasl_password": ""}, r"sasl\.jaas\.config"),
        ({"sasl_password": "a\0b"}, "NUL character"),
    ],
)
def test_settings_no_broker_could_take_are_not_sent(fake_broker: MakeBroker, change: dict[str, str], why: str) -> None:
    broker = fake_broker(_sasl_answers())
    with pytest.raises(ConfigError, match=why):
        _connect(broker, **SASL | {"sasl_password": "secret"} | change)
    assert broker.requests == []


def test_errors_without_words_of_the_broker_have_words_of_ours() -> None:
    assert "does not host" in str(to_error(3))
    assert "up to 249 characters, which are ASCII letters, digits" in str(to_error(ErrorCode.INVALID_TOPIC_EXCEPTION))
    assert str(to_error(3, "The broker's own words")) == "The broker's own words"
    assert str(to_error(ErrorCode.ILLEGAL_GENERATION)) == "ILLEGAL_GENERATION"


def test_metadata_answers_are_read_in_every_version(fake_broker: MakeBroker) -> None:
    from moldau.client.cluster import ClusterClient

    for version in range(1, 14):
        broker = fake_broker({}, versions={ApiKey.METADATA: (0, version)})
        broker.answers[ApiKey.METADATA] = metadata_answer(broker)
        with ClusterClient(broker.config()) as cluster:
            metadata = cluster.metadata()
        assert set(metadata.brokers) == {1}
        assert [p.partition for p in metadata.topics["t"].partitions] == [0, 1], f"version {version}"
