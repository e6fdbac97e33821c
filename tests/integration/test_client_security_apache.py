"""Our blocking client against Apache Kafka with TLS and SASL: what librdkafka writes there, it finds.

One broker with a listener of every kind; its certificate is good for `localhost`, not for 127.0.0.1.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from bench.servers.apache import ApacheKafka
from bench.servers.server import HOST, free_port
from moldau.client.admin import list_offsets
from moldau.client.cluster import ClusterClient
from moldau.client.config import ClientConfig
from moldau.client.librdkafka import to_librdkafka
from moldau.errors import ConfigError, ErrorCode, KafkaError
from moldau.wire.apis import ApiKey
from moldau.wire.constants import LATEST
from moldau.wire.topic_partition import TopicPartition
from tests.integration.conftest import make_topic
from tests.integration.records.test_apache import pytestmark  # noqa: F401 - skips where there are no jars

Properties = Mapping[str, str]

TOPIC = "secured"
KEY_PASSWORD = "key-hush"
# The ligature and the accents would come out of SASLprep as other characters; Kafka hashes them as they are.
PASSWORDS = {"PLAIN": "hush plain", "SCRAM-SHA-256": "hush-256-ﬁe\u0301", "SCRAM-SHA-512": "hush-512"}
REAUTHENTICATE_MS = 1200
LISTENERS = {
    "SSL": "SSL",
    "MTLS": "SSL",  # wants a client certificate
    "SASL_PLAINTEXT": "SASL_PLAINTEXT",
    "SASL_SSL": "SASL_SSL",
    "CONTROLLER": "PLAINTEXT",
    "PLAINTEXT": "PLAINTEXT",
}


class Certificates:
    """A CA, the broker's certificate for `localhost`, a client's; keys are PKCS#8, the client's is encrypted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.ca = folder / "ca.pem"
        self._openssl("req", "-x509", "-subj", "/CN=test CA", *self._new_key("ca"), "-nodes", "-out", "ca.pem")
        self.broker = self._signed("broker", "-nodes")
        self.client = self._signed("client", "-passout", f"pass:{KEY_PASSWORD}")

    def text(self, name: str) -> str:
        return (self._folder / name).read_text()

    def _signed(self, name: str, *options: str) -> Path:
        """A file with the key and the certificate, as `ssl.keystore.type=PEM` wants it."""
        self._openssl("req", "-subj", f"/CN={name}", *self._new_key(name), *options, "-out", f"{name}.csr")
        (self._folder / "san").write_text("subjectAltName=DNS:localhost")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-extfile", "san", "-days", "2", "-out", f"{name}.crt",
        )  # fmt: skip
        both = self._folder / f"{name}.pem"
        both.write_text(self.text(f"{name}.key") + self.text(f"{name}.crt"))
        return both

    @staticmethod
    def _new_key(name: str) -> tuple[str, ...]:
        return ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-keyout", f"{name}.key")

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True, timeout=30)


class SecuredKafka(ApacheKafka):
    """`at(listener)` is where to connect; users: alice, with a password of her own for each mechanism."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.ports = {name: free_port() for name in LISTENERS if LISTENERS[name] != "PLAINTEXT"}
        directory.mkdir(exist_ok=True)
        self.certificates = Certificates(directory)

    def at(self, listener: str, host: str = "localhost") -> str:
        return f"{host}:{self.ports[listener]}" if listener in self.ports else self.bootstrap

    def role_properties(self, node_id: int, voters: str, controller_port: int) -> dict[str, object]:
        return {**super().role_properties(node_id, voters, controller_port), **self._settings(controller_port)}

    def _settings(self, controller_port: int) -> dict[str, object]:
        secured = ",".join(f"{name}://{HOST}:{port}" for name, port in self.ports.items())
        security = "org.apache.kafka.common.security"
        return {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{HOST}:{controller_port},{secured}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}," + secured.replace(HOST, "localhost"),
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in LISTENERS.items()),
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.certificates.broker,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.certificates.ca,
            "listener.name.mtls.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
            "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.sasl_ssl.scram-sha-512.connections.max.reauth.ms": REAUTHENTICATE_MS,
            **{
                f"listener.name.{listener}.{mechanism}.sasl.jaas.config": f"{security}.{module};"
                for listener in ("sasl_plaintext", "sasl_ssl")
                for mechanism, module in (
                    ("plain", f'plain.PlainLoginModule required user_alice="{PASSWORDS["PLAIN"]}"'),
                    ("scram-sha-256", "scram.ScramLoginModule required"),
                    ("scram-sha-512", "scram.ScramLoginModule required"),
                )
            },
        }

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        users: tuple[str, ...] = ()
        if main_class == "kafka.tools.StorageTool":
            scram = [(name, password) for name, password in PASSWORDS.items() if name != "PLAIN"]
            users = tuple(f"--add-scram={name}=[name=alice,password={password}]" for name, password in scram)
        java, *rest = super()._java(main_class, *arguments, *users)
        return [java, "-XX:TieredStopAtLevel=1", *rest]  # it lives for seconds: the quick compiler alone is quicker


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    broker = SecuredKafka(tmp_path_factory.mktemp("secured"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LC_ALL", "C.UTF-8")  # in which Java reads the passwords of its command line
        broker.start()
    try:
        make_topic(broker.bootstrap, name=TOPIC)
        yield broker
    finally:
        broker.discard()


def sasl(mechanism: str, password: str | None = None) -> dict[str, str]:
    secret = PASSWORDS[mechanism] if password is None else password
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    return {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'org.apache.kafka.common.security.{module}LoginModule required username="alice" '
        f'password="{secret}";',
    }


def properties(kafka: SecuredKafka, listener: str, *parts: str | Properties) -> dict[str, str]:
    """What a user would write for the listener; parts are properties, or the names of those below."""
    certificates = kafka.certificates
    named = {
        "ca": {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.ca)},
        "inline ca": {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates.text("ca.pem")},
        "certificate": {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificates.client)},
        "inline certificate": {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": certificates.text("client.key").replace("\n", " "),
            "ssl.keystore.certificate.chain": certificates.text("client.crt"),
        },
        "key password": {"ssl.key.password": KEY_PASSWORD},
    }
    props = {"security.protocol": LISTENERS[listener], "socket.connection.setup.timeout.ms": "5000"}
    for part in parts:
        props |= named[part] if isinstance(part, str) else part
    return props


def end_offset(cluster: ClusterClient) -> int:
    found = list_offsets(cluster, {TopicPartition(TOPIC, 0): LATEST})[TopicPartition(TOPIC, 0)]
    assert not isinstance(found, KafkaError), found
    return found.offset


@pytest.mark.parametrize(
    ("listener", "parts"),
    [
        ("SSL", ["ca"]),
        ("SSL", ["inline ca"]),
        ("MTLS", ["ca", "certificate", "key password"]),
        ("MTLS", ["inline ca", "inline certificate", "key password"]),
        ("SASL_PLAINTEXT", [sasl("PLAIN")]),
        ("SASL_PLAINTEXT", [sasl("SCRAM-SHA-256")]),
        ("SASL_SSL", ["ca", sasl("PLAIN")]),
        ("SASL_SSL", ["inline ca", sasl("SCRAM-SHA-256")]),
        ("SASL_SSL", ["ca", sasl("SCRAM-SHA-512")]),
    ],
)
def test_our_client_sees_what_librdkafka_writes_with_the_same_settings(
    kafka: SecuredKafka, listener: str, parts: list[str | Properties]
) -> None:
    props = properties(kafka, listener, *parts)
    config, _ = to_librdkafka({name: value for name, value in props.items() if not name.startswith("socket.")})
    producer = Producer(config | {"bootstrap.servers": kafka.at(listener), "acks": "all"})
    with ClusterClient(ClientConfig.from_properties(kafka.at(listener), props)) as cluster:
        before = end_offset(cluster)
        producer.produce(TOPIC, b"x")
        assert producer.flush(20) == 0
        assert end_offset(cluster) == before + 1
        assert [broker.port for broker in cluster.brokers().values()] == [kafka.ports[listener]]


def test_any_host_name_will_do_where_the_settings_say_so(kafka: SecuredKafka) -> None:
    props = properties(kafka, "SSL", "ca", {"ssl.endpoint.identification.algorithm": ""})
    with ClusterClient(ClientConfig.from_properties(kafka.at("SSL", HOST), props)) as cluster:
        assert end_offset(cluster) >= 0


def test_a_session_outlives_the_brokers_patience(kafka: SecuredKafka) -> None:
    """The same connection all along: the broker would cut off one that did not authenticate again in time."""
    props = properties(kafka, "SASL_SSL", "ca", sasl("SCRAM-SHA-512"))
    with ClusterClient(ClientConfig.from_properties(kafka.at("SASL_SSL"), props)) as cluster:
        connection = cluster.any_broker()
        deadline = time.monotonic() + 1.5 * REAUTHENTICATE_MS / 1000
        while time.monotonic() < deadline:
            connection.send(
                ApiKey.LIST_GROUPS, lambda schema: schema.ListGroupsRequest(states_filter=(), types_filter=())
            )
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("listener", "parts", "code", "why"),
    [
        ("SASL_PLAINTEXT", [sasl("PLAIN", "hush?")], ErrorCode.SASL_AUTHENTICATION_FAILED, "rejected user 'alice'"),
        ("SASL_SSL", ["ca", sasl("SCRAM-SHA-512", "hush?")], ErrorCode.SASL_AUTHENTICATION_FAILED, "rejected user"),
        ("SASL_PLAINTEXT", [sasl("SCRAM-SHA-512")], ErrorCode.UNSUPPORTED_SASL_MECHANISM, "one of: .*SCRAM-SHA-256"),
        ("SSL", [], None, r"not trusted .*ssl\.truststore\.location"),
        ("MTLS", ["ca"], None, r"rejected the client certificate .*ssl\.keystore\.location"),
        ("MTLS", ["ca", "certificate"], None, r"encrypted: set ssl\.key\.password"),
        ("MTLS", ["ca", "certificate", {"ssl.key.password": "hush?"}], None, r"check the files and ssl\.key\.password"),
        ("SSL", [{"security.protocol": "PLAINTEXT"}], None, r"set security\.protocol=SSL"),
        (
            "PLAINTEXT", ["ca", {"security.protocol": "SSL"}], ErrorCode.BROKER_NOT_AVAILABLE,
            r"set security\.protocol=PLAINTEXT",
        ),
        (
            "SASL_PLAINTEXT", [{"security.protocol": "PLAINTEXT"}], ErrorCode.NETWORK_EXCEPTION,
            r"set security\.protocol=SASL_PLAINTEXT",
        ),
        (
            "SASL_SSL", ["ca", {"security.protocol": "SSL"}], ErrorCode.NETWORK_EXCEPTION,
            r"set security\.protocol=SASL_SSL",
        ),
        (
            "PLAINTEXT", [sasl("PLAIN"), {"security.protocol": "SASL_PLAINTEXT"}], ErrorCode.ILLEGAL_SASL_STATE,
            r"set security\.protocol=PLAINTEXT",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_once_in_one_line(
    kafka: SecuredKafka, listener: str, parts: list[str | Properties], code: ErrorCode | None, why: str
) -> None:
    """`code` None: a ConfigError, which nobody tries again."""
    error = refusal(ClientConfig.from_properties(kafka.at(listener), properties(kafka, listener, *parts)))
    assert getattr(error, "code", None) == code, error
    assert re.search(why, str(error))
    assert "\n" not in str(error)
    assert "hush" not in str(error)


def test_a_certificate_for_another_host_is_refused(kafka: SecuredKafka) -> None:
    error = refusal(ClientConfig.from_properties(kafka.at("SSL", HOST), properties(kafka, "SSL", "ca")))
    assert isinstance(error, ConfigError)
    assert re.search(r"mismatch.*127\.0\.0\.1.*ssl\.endpoint\.identification", str(error))


def refusal(config: ClientConfig) -> Exception:
    start = time.monotonic()
    with pytest.raises((ConfigError, KafkaError)) as caught, ClusterClient(config) as cluster:
        end_offset(cluster)
    assert time.monotonic() - start < config.api_timeout_ms / 1000 / 2, "it tried again"
    return caught.value
