"""One connection to one broker: connect, authenticate, negotiate versions, then send one request at a time (`send`) or
several before the first response (`send_async`, `receive`).

`cluster` decides which broker to ask and when to retry.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from moldau.client.config import RESPONSE_BYTES_MAX, ClientConfig
from moldau.errors import ConfigError, ErrorCode, KafkaError, MoldauError, ProtocolError
from moldau.version import __version__
from moldau.wire.apis import APIS, ApiKey
from moldau.wire.messages import Schema, decode_response, encode_request, request_head, request_schema
from moldau.wire.primitives import Buffer

Build = Callable[[Schema], Any]  # makes a request out of the classes of the version that was agreed on

_INT32 = struct.Struct(">i")
_INT16 = struct.Struct(">h")

# The first two bytes of what a TLS server says to a client that does not speak TLS: an alert, of any version 3.x.
_TLS_ALERT = 0x1503
_HTTP = int.from_bytes(b"HTTP", "big")
_HTTP_CHECK_AFTER_MS = 1_000
# Of the session's lifetime, so that the broker never sees us late; Kafka's clients take 0.85 to 0.95.
_REAUTHENTICATE_AFTER = 0.9


class Connection:
    def __init__(self, host: str, port: int, config: ClientConfig) -> None:
        self.host = host
        self.port = port
        self._config = config
        self._correlation_id = 0
        self._is_in_use = False  # the broker has answered more than what it answers to anybody
        self._session_end: float | None = None
        self._socket = self._open()
        self.versions: dict[int, tuple[int, int]] = {}  # what the broker serves: API key → (lowest, highest)
        try:
            self.versions = self._negotiate()
            self._socket.settimeout(config.request_timeout_ms / 1000)
            if config.security.uses_sasl:
                self._authenticate()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    def version_of(self, api_key: int) -> int | None:
        """The highest version both sides speak; None where there is none."""
        served = self.versions.get(api_key)
        if served is None:
            return None
        highest = min(served[1], APIS[api_key].max_version)
        return highest if highest >= max(served[0], APIS[api_key].min_version) else None

    def send(self, api_key: int, build: Build, *, max_version: int | None = None) -> Any:
        """One request, one answer. Errors inside the answer are the caller's to look at.

        `max_version` is for callers that need a field which later versions no longer have.
        """
        version = self.version_of(api_key)
        if version is not None and max_version is not None:
            version = min(version, max_version)
        if version is None:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"The broker at {self.address} does not support {APIS[api_key].name}"
                + (
                    f" in versions {APIS[api_key].min_version} to {APIS[api_key].max_version}"
                    if api_key in self.versions
                    else ""
                ),
            )
        return self._decode(api_key, version, self._exchange(api_key, version, build))

    def send_raw(self, api_key: int, version: int, build: Build, buffer: Callable[[int], memoryview]) -> memoryview:
        """`send` in an agreed version, but the answer's frame stays bytes, in the `buffer` of its size."""
        frame = self._exchange(api_key, version, build, buffer)
        (correlation_id,) = _INT32.unpack_from(frame)
        self._check_correlation(correlation_id, self._correlation_id)
        return frame

    def send_async(self, api_key: int, version: int, body: Sequence[Buffer]) -> int:
        """Send a request whose body the caller packed, and do not wait for its answer; returns its number.

        Answers are received in the same order, before anything else is sent by other means. A caller that keeps
        sending receives them all when the `session_is_over`.
        """
        if self.session_is_over:
            self._authenticate()
        self._correlation_id += 1
        size = sum(len(part) for part in body)
        head = request_head(api_key, version, self._correlation_id, self._config.client_id, size)
        with self._as_kafka_error(api_key):
            for part in (head, *body):
                self._socket.sendall(part)
        return self._correlation_id

    def post(self, api_key: int, version: int, build: Build) -> int:
        """`send_async` of a message that is not packed yet."""
        if self.session_is_over:
            self._authenticate()
        self._correlation_id += 1
        entity = build(request_schema(api_key, version))
        with self._as_kafka_error(api_key):
            self._socket.sendall(encode_request(self._correlation_id, self._config.client_id, entity))
        return self._correlation_id

    def fileno(self) -> int:
        """For `select`: readable when an answer arrives, or the connection is lost."""
        return self._socket.fileno()

    def receive(self, api_key: int, version: int, number: int) -> Any:
        """The answer to the request of that number, the oldest that has not been received."""
        with self._as_kafka_error(api_key):
            frame = self._read_frame()
        correlation_id, answer = decode_response(api_key, version, frame)
        self._check_correlation(correlation_id, number)
        return answer

    @property
    def session_is_over(self) -> bool:
        """Whether it is time to authenticate again, which the next request does."""
        return self._session_end is not None and time.monotonic() >= self._session_end

    def is_lost(self) -> bool:
        """Whether an idle connection cannot be used any more: the broker closed it, or sent something unasked."""
        idle = select.poll()
        idle.register(self._socket, select.POLLIN)
        return bool(idle.poll(0))

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> socket.socket:
        try:
            plain = socket.create_connection((self.host, self.port), self._config.connection_timeout_ms / 1000)
            try:
                plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock = self._wrap(plain)
            except BaseException:
                plain.close()
                raise
        except OSError as error:
            raise KafkaError(
                ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {self.address}: {_reason(error)}"
            ) from error
        return sock

    def _wrap(self, plain: socket.socket) -> socket.socket:
        if not self._config.security.uses_tls:
            return plain
        from moldau.client import tls  # most connections are plain, and it takes milliseconds to load

        return tls.wrap(plain, self.host, self.port, self._config.security)

    def _negotiate(self) -> dict[int, tuple[int, int]]:
        version = APIS[ApiKey.API_VERSIONS].max_version
        frame = self._exchange(ApiKey.API_VERSIONS, version, _api_versions_request)
        if len(frame) >= 6 and _INT16.unpack_from(frame, 4)[0] == ErrorCode.UNSUPPORTED_VERSION:
            # An older broker answers in version 0, with the versions it does know.
            known = self._decode(ApiKey.API_VERSIONS, 0, frame)
            version = max((api.max_version for api in known.api_keys if api.api_key == ApiKey.API_VERSIONS), default=0)
            frame = self._exchange(ApiKey.API_VERSIONS, version, _api_versions_request)
        answer = self._decode(ApiKey.API_VERSIONS, version, frame)
        raise_error(answer.error_code, f"{self.address} rejected the ApiVersions request")
        return {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def _authenticate(self) -> None:
        """At the start, and again on the same connection when the broker's patience ends (KIP-368)."""
        from moldau.client import sasl  # loaded by those who need it, as `tls` is

        self._session_end = None
        start = time.monotonic()
        lifetime_s = sasl.authenticate(self, self._config.security)
        if lifetime_s > 0:
            self._session_end = start + lifetime_s * _REAUTHENTICATE_AFTER

    def _exchange(
        self, api_key: int, version: int, build: Build, buffer: Callable[[int], memoryview] | None = None
    ) -> memoryview:
        if self.session_is_over:
            self._authenticate()
        self._correlation_id += 1
        entity = build(request_schema(api_key, version))
        request = encode_request(self._correlation_id, self._config.client_id, entity)
        with self._as_kafka_error(api_key):
            self._socket.sendall(request)
            if not self.versions:
                self._await_first_answer()
            return self._read_frame(buffer)

    @contextmanager
    def _as_kafka_error(self, api_key: int) -> Iterator[None]:
        """Errors of the network as errors of Kafka."""
        try:
            yield
        except TimeoutError as error:
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, self._timeout_message(api_key)) from error
        except OSError as error:
            raise self._lost(error) from error

    def _await_first_answer(self) -> None:
        """Finds out early that this is an HTTP server, which would wait for the rest of a line until the timeout."""
        first = select.poll()
        first.register(self._socket, select.POLLIN)
        if not first.poll(_HTTP_CHECK_AFTER_MS) and _speaks_http(self.host, self.port):
            raise self._not_kafka(_HTTP)

    def _not_kafka(self, size: int) -> ProtocolError:
        what = "an HTTP server, " if size == _HTTP else ""
        return ProtocolError(f"{self.address} is {what}not a Kafka broker: check the port")

    def _timeout_message(self, api_key: int) -> str:
        if self.versions:
            return (
                f"no response to {APIS[api_key].name} from {self.address} within {self._config.request_timeout_ms} ms"
            )
        timeout_ms = self._config.connection_timeout_ms
        return f"{self.address} accepted the connection but did not respond within {timeout_ms} ms: check the port"

    def _read_frame(self, buffer: Callable[[int], memoryview] | None = None) -> memoryview:
        (size,) = _INT32.unpack(self._read(memoryview(bytearray(4))))
        self._check_size(size)
        frame = self._read(memoryview(bytearray(size)) if buffer is None else buffer(size))
        self._is_in_use = bool(self.versions)
        return frame

    def _check_size(self, size: int) -> None:
        if size >> 16 == _TLS_ALERT and not self.versions:
            protocol = "SASL_SSL" if self._config.security.uses_sasl else "SSL"
            raise ConfigError(f"{self.address} uses TLS: set security.protocol={protocol}")
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise self._not_kafka(size)

    def _lost(self, error: OSError) -> MoldauError:
        what = f"connection to {self.address} lost"
        if self._config.security.uses_tls:
            from moldau.client import tls

            refusal = tls.explain(error)  # of our certificate, which comes after the handshake
            if refusal is not None:
                return ConfigError(f"{what}: {refusal}")
        return KafkaError(ErrorCode.NETWORK_EXCEPTION, f"{what}: {_reason(error)}{self._probable_cause()}")

    def _probable_cause(self) -> str:
        """A broker just closes a connection whose security protocol is not that of the listener."""
        security = self._config.security
        if self._is_in_use or (self.versions and security.uses_sasl):
            return ""
        if self.versions:
            protocol = "SASL_SSL" if security.uses_tls else "SASL_PLAINTEXT"
            return f"; if this listener requires SASL, set security.protocol={protocol}"
        if security.uses_tls:
            return "; if the broker requires a client certificate, set ssl.keystore.location"
        protocol = "SASL_SSL" if security.uses_sasl else "SSL"
        return f"; check that this is a Kafka port, and if it uses TLS, set security.protocol={protocol}"

    def _read(self, into: memoryview) -> memoryview:
        view = into
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionResetError("closed by the broker")
            view = view[count:]
        return into

    def _decode(self, api_key: int, version: int, frame: memoryview) -> Any:
        correlation_id, answer = decode_response(api_key, version, frame)
        self._check_correlation(correlation_id, self._correlation_id)
        return answer

    def _check_correlation(self, correlation_id: int, expected: int) -> None:
        if correlation_id != expected:
            raise ProtocolError(
                f"{self.address} sent a response with correlation id {correlation_id}, expected {expected}"
            )


def raise_error(code: int, message: str | None = None) -> None:
    """Raise what a broker put into an answer; nothing for NONE."""
    if code:
        raise to_error(code, message)


def to_error(code: int, message: str | None = None) -> KafkaError:
    known = ErrorCode(code)
    return KafkaError(known, message or _MESSAGES.get(known, ""))


def _speaks_http(host: str, port: int) -> bool:
    """Whether an HTTP request gets an HTTP answer; a Kafka broker closes the connection on it."""
    timeout_s = _HTTP_CHECK_AFTER_MS / 1000
    try:
        with socket.create_connection((host, port), timeout_s) as probe:
            probe.settimeout(timeout_s)
            probe.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
            return probe.recv(5) == b"HTTP/"
    except OSError:
        return False


def _api_versions_request(schema: Schema) -> Any:
    return schema.ApiVersionsRequest(client_software_name="moldau", client_software_version=__version__)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).removesuffix(".")


# For the codes people meet in answers that carry no text of their own.
_MESSAGES = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "The topic is internal, or its name is invalid: a name has up to 249 "
    "characters, which are ASCII letters, digits, '.', '_' and '-'.",
    ErrorCode.OFFSET_OUT_OF_RANGE: "The requested offset is not within the range of the partition.",
    ErrorCode.LEADER_NOT_AVAILABLE: "The partition has no leader at the moment.",
    ErrorCode.NOT_LEADER_OR_FOLLOWER: "The broker is not the leader of the partition.",
    ErrorCode.NOT_CONTROLLER: "The broker is not the controller.",
    ErrorCode.INVALID_REGULAR_EXPRESSION: "The regular expression is not valid.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "Not authorized to access the topic.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Not authorized to change the cluster.",
    ErrorCode.TOPIC_DELETION_DISABLED: "Topic deletion is disabled (delete.topic.enable=false).",
    ErrorCode.POLICY_VIOLATION: "The request violates the broker's policy.",
    ErrorCode.UNSUPPORTED_VERSION: "The broker does not support this version of the request.",
    ErrorCode.KAFKA_STORAGE_ERROR: "The broker's disk failed.",
    ErrorCode.REQUEST_TIMED_OUT: "The request timed out on the broker.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Authentication failed: check username and password.",
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator is loading and hence can't process requests.",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.NOT_COORDINATOR: "This is not the correct coordinator.",
    ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
    ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist.",
    ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
    ErrorCode.UNKNOWN_MEMBER_ID: "The coordinator is not aware of this member: the group has active members.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Not authorized to access the group.",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Deleting offsets of a topic is forbidden while the consumer group is "
    "actively subscribed to it.",
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: "The transactional id could not be found.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Not authorized to use the transactional id.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "A transaction of this transactional id is still completing: try again.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "The producer epoch does not match the broker's.",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "A coordinator with a higher epoch has taken over.",
}
