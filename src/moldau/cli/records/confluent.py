"""What the commands that move records share: confluent-kafka clients from Java-style properties.

Imported by those commands only, and confluent-kafka inside functions only: it takes 80 ms to load.
"""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from moldau.cli.common import default_servers, did_you_mean, warn
from moldau.client.property_names import CLIENT_PROPERTIES
from moldau.errors import CommandError, ConfigError, ErrorCode, KafkaError

_METADATA_TRY_S = 1.0  # how long one metadata request may hang before errors so far are shown


class ErrorLines:
    """librdkafka's errors as lines on stderr: each different one once, so that a dead broker is one line."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, error: Any) -> None:
        from confluent_kafka import KafkaError as Codes

        # Without how long it took, which differs every time; that all are down follows from the lines before.
        text = re.sub(r" \(after \d+ms in state \w+[^)]*\)", "", error.str())
        if text not in self._seen and error.code() != Codes._ALL_BROKERS_DOWN:
            self._seen.add(text)
            warn(f"WARN {text}")


def client_config(props: Mapping[str, str], bootstrap_servers: str | None, client_id: str) -> dict[str, Any]:
    from moldau.client.librdkafka import to_librdkafka

    config: dict[str, Any]
    config, ignored = to_librdkafka(props)
    for name in ignored:
        warn(f"WARN property {name} has no effect")
    if bootstrap_servers is not None:
        config["bootstrap.servers"] = bootstrap_servers
    config.setdefault("bootstrap.servers", default_servers())
    config.setdefault("client.id", client_id)
    # librdkafka writes its own log to stderr, fatal errors even at the lowest level; what people need to see comes
    # through the error callback and with the records.
    silent = logging.Logger("librdkafka", logging.CRITICAL + 1)
    return config | {"log_level": 0, "logger": silent, "error_cb": ErrorLines()}


def producer(config: Mapping[str, Any], topic: str | None = None) -> Any:
    from confluent_kafka import Producer

    from moldau.client.librdkafka import producer_defaults

    _check_reachable(config, topic)
    return _create(Producer, producer_defaults(config) | dict(config))


def consumer(config: Mapping[str, Any], topic: str | None = None) -> Any:
    from confluent_kafka import Consumer

    _check_reachable(config, topic)
    # With librdkafka's own default a reader that was slower for a moment then waits a whole second for more.
    return _create(Consumer, {"fetch.queue.backoff.ms": 10} | dict(config))


def share_consumer(config: Mapping[str, Any]) -> Any:
    from confluent_kafka import ShareConsumer

    _check_reachable(config)
    return _create(ShareConsumer, config)


def _check_reachable(config: Mapping[str, Any], topic: str | None = None) -> None:
    """librdkafka waits for a broker for ever and says little about a wrong address; this fails at once and says why.

    It also creates a misspelt topic without a word: `topic` is looked for first.
    """
    if config.get("security.protocol", "plaintext").lower() != "plaintext":
        return
    from moldau.client.cluster import ClusterClient
    from moldau.client.config import ClientConfig, parse_servers

    with ClusterClient(ClientConfig(parse_servers(config["bootstrap.servers"]))) as cluster:
        cluster.any_broker()
        if topic is not None and config.get("allow.auto.create.topics", "true") == "true":
            topics = cluster.metadata().topics
            if topic not in topics:
                hint = did_you_mean(topic, topics)
                warn(f"WARN topic '{topic}' does not exist{hint}; it is created if auto.create.topics.enable is on")


def _create(kind: Callable[[Any], Any], config: Mapping[str, Any]) -> Any:
    from confluent_kafka import KafkaException

    try:
        return kind(dict(config))
    except KafkaException as error:
        text = error.args[0].str()
        unknown = re.search(r'No such configuration property: "([^"]+)"', text)
        raise ConfigError(text + (did_you_mean(unknown[1], CLIENT_PROPERTIES) if unknown else "")) from error


@contextmanager
def readable_errors() -> Iterator[None]:
    """Inside, what librdkafka raises comes out as an error of ours, with its words."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise CommandError(error.args[0].str()) from error


def cluster_metadata(client: Any, topic: str | None, timeout_ms: int, interruption: Interruption) -> Any:
    """Metadata of one topic or of all, waiting for a broker to appear as long as the timeout allows."""
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + timeout_ms / 1000
    while True:
        remaining = deadline - time.monotonic()
        try:
            metadata = client.list_topics(topic, timeout=max(0.05, min(_METADATA_TRY_S, remaining)))
            if topic is not None:
                _check_topic(metadata.topics[topic])
            return metadata
        except KafkaException as error:
            interruption.check()
            client.poll(0)  # serves the error callback: "Connection refused" is seen at once
            if remaining <= 0:
                raise KafkaError(
                    ErrorCode.BROKER_NOT_AVAILABLE,
                    f"no broker responded within {timeout_ms} ms ({error.args[0].str()})",
                ) from error


def require_broker(config: Mapping[str, Any], timeout_ms: int, interruption: Interruption) -> None:
    """For clients that cannot ask for metadata themselves: fails if no broker answers in time."""
    from confluent_kafka.admin import AdminClient

    cluster_metadata(_create(AdminClient, config), None, timeout_ms, interruption)


def _check_topic(topic: Any) -> None:
    """Raise what waiting will not mend: a bad name, a missing permission. A new topic may yet appear."""
    from confluent_kafka import KafkaError as Codes

    if topic.error is not None and topic.error.code() not in (
        Codes.UNKNOWN_TOPIC_OR_PART,
        Codes.LEADER_NOT_AVAILABLE,
    ):
        raise CommandError(f"topic {topic.topic}: {topic.error.str()}")


def milliseconds(props: Mapping[str, str], name: str, default: int) -> int:
    text = props.get(name, str(default)).strip()
    if not text.isdigit():
        raise ConfigError(f"{name}={text}: expected a number of milliseconds")
    return int(text)


class Counts(Protocol):
    @property
    def count(self) -> int: ...


@contextmanager
def closing(consumer: Any, printed: Counts) -> Iterator[None]:
    """Closes the consumer and says how many records it printed, however it ends; Ctrl-C is the usual way."""
    try:
        yield
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        warn("Unable to write to standard out, closing consumer.")
        raise
    finally:
        consumer.close()
        warn(f"Processed a total of {printed.count} messages")


class Interruption:
    """SIGINT and SIGTERM as a flag: an exception out of nowhere could strike inside librdkafka's callbacks.

    The first signal asks the command to finish in order, the second ends it there and then.
    """

    def __init__(self) -> None:
        self.requested = False
        self._may_raise = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: object) -> None:
        if self.requested:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self.requested = True
        if self._may_raise:
            raise KeyboardInterrupt

    def check(self) -> None:
        if self.requested:
            raise KeyboardInterrupt

    @contextmanager
    def breaking(self) -> Iterator[None]:
        """Inside, a signal breaks off what blocks (reading a terminal), as it does in any Python program."""
        self._may_raise = True
        try:
            self.check()
            yield
        finally:
            self._may_raise = False
