"""SASL on a Kafka connection: agree on a mechanism, exchange its messages, learn how long the session lasts.

A mechanism is a generator of our messages, sent the broker's answers: PLAIN is here, SCRAM in `scram`. Kerberos and
OAUTHBEARER need libraries and token services that this client does without; librdkafka has them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from moldau.client.scram import scram
from moldau.client.security import Security
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.apis import ApiKey

if TYPE_CHECKING:
    from moldau.client.connection import Connection

Messages = Generator[bytes, bytes, None]

_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MECHANISMS = ("PLAIN", *_SCRAM_HASHES)


def authenticate(connection: Connection, security: Security) -> float:
    """Returns after how many seconds the broker wants to see us authenticate again; 0 for never."""
    messages = _messages(security)
    token = next(messages)
    _handshake(connection, security)
    while True:
        answer = _exchange(connection, security, token)
        try:
            token = messages.send(answer.auth_bytes)
        except StopIteration:
            lifetime = getattr(answer, "session_lifetime", None)  # brokers before Kafka 2.2 have none
            return lifetime.total_seconds() if lifetime else 0.0


def _messages(security: Security) -> Messages:
    mechanism = security.mechanism
    if mechanism not in _MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism or '(not set)'}: expected {', '.join(_MECHANISMS)}")
    if not security.username or not security.password.value:
        raise ConfigError(
            f"{mechanism} requires a user: set sasl.jaas.config (…LoginModule required username=… password=…;), "
            "or sasl.username and sasl.password"
        )
    if mechanism == "PLAIN":
        return _plain(security.username, security.password.value)
    return scram(_SCRAM_HASHES[mechanism], security.username, security.password.value)


def _plain(username: str, password: str) -> Messages:
    if "\0" in username + password:
        raise ConfigError("PLAIN: user name and password must not contain a NUL character")
    yield b"\0" + username.encode() + b"\0" + password.encode()


def _handshake(connection: Connection, security: Security) -> None:
    code = ErrorCode.ILLEGAL_SASL_STATE
    if connection.version_of(ApiKey.SASL_HANDSHAKE) is not None:
        answer = connection.send(
            ApiKey.SASL_HANDSHAKE, lambda schema: schema.SaslHandshakeRequest(mechanism=security.mechanism)
        )
        code = ErrorCode(answer.error_code)
    if code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms)
        raise KafkaError(
            code, f"{connection.address} does not support {security.mechanism}; set sasl.mechanism to one of: {offered}"
        )
    if code is ErrorCode.ILLEGAL_SASL_STATE:
        protocol = "SSL" if security.uses_tls else "PLAINTEXT"
        raise KafkaError(code, f"{connection.address} does not use SASL: set security.protocol={protocol}")
    if code:
        raise KafkaError(code, f"{connection.address} rejected the SASL handshake")


def _exchange(connection: Connection, security: Security, token: bytes) -> Any:
    answer = connection.send(ApiKey.SASL_AUTHENTICATE, lambda schema: schema.SaslAuthenticateRequest(auth_bytes=token))
    if answer.error_code:
        said = (answer.error_message or "no reason given").rstrip(".")
        raise KafkaError(
            ErrorCode(answer.error_code),
            f"{connection.address} rejected user '{security.username}' ({said}): check user name and password, and "
            f"that the user has a password for {security.mechanism}",
        )
    return answer
