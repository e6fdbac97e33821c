"""Security settings: every way to give them, none of them shown, and errors that say what to do."""

from __future__ import annotations

import logging
import pickle
from pathlib import Path

import pytest

from moldau.client.config import ClientConfig
from moldau.client.librdkafka import to_librdkafka
from moldau.client.security import Pem, Secret, Security, parse_jaas
from moldau.client.tls import wrap
from moldau.errors import ConfigError

PEM = "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n"
SECRETS = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.jaas.config": 'X required username="alice" password="hush-1";',
    "ssl.keystore.key": PEM.replace("MIIB", "hush2"),
    "ssl.keystore.certificate.chain": PEM.replace("MIIB", "hush3"),
    "ssl.key.password": "hush-4",
}


def test_jaas_options_are_read_with_quotes_and_escapes() -> None:
    line = r'org.apache.kafka.PlainLoginModule required username="al" password="se\"c;ret=1\\" x=' + "'y' z=plain;"
    assert parse_jaas(line) == {"username": "al", "password": 'se"c;ret=1\\', "x": "y", "z": "plain"}


def test_passwords_and_keys_are_in_no_text_of_the_settings(caplog: pytest.LogCaptureFixture) -> None:
    config = ClientConfig.from_properties("a:1", SECRETS)
    logging.getLogger("test").warning("%s %r %s", config, config.security, config.security._asdict())
    shown = f"{caplog.text} {config} {config.security!r} {tuple(config.security)} {config.security.password:}"
    assert "alice" in shown
    assert "hush" not in shown
    assert config.security.password == Secret("hush-1")


def test_settings_reach_a_spark_task_whole() -> None:
    config = ClientConfig.from_properties("a:1", SECRETS)
    copy = pickle.loads(pickle.dumps(config))
    assert copy == config
    assert hash(copy) == hash(config)
    assert copy.security.password.value == "hush-1"


def test_pem_values_may_be_on_one_line() -> None:
    line = "-----BEGIN CERTIFICATE----- " + "A" * 100 + " -----END CERTIFICATE-----"
    security = Security.from_properties({"ssl.truststore.certificates": line, "ssl.truststore.type": "PEM"})
    assert security.ca is not None
    assert security.ca.text == Secret(
        f"-----BEGIN CERTIFICATE-----\n{'A' * 64}\n{'A' * 36}\n-----END CERTIFICATE-----\n"
    )


def test_a_pem_store_holds_certificate_and_key() -> None:
    security = Security.from_properties({"ssl.keystore.type": "PEM", "ssl.keystore.location": "me.pem"})
    assert security.certificate == security.key == Pem("ssl.keystore.location", "me.pem")


def test_inline_pem_means_the_same_to_librdkafka() -> None:
    config, _ = to_librdkafka(SECRETS | {"ssl.truststore.certificates": PEM})
    assert {name: value for name, value in config.items() if name.startswith("ssl.")} == {
        "ssl.ca.pem": PEM,
        "ssl.certificate.pem": PEM.replace("MIIB", "hush3"),
        "ssl.key.pem": PEM.replace("MIIB", "hush2"),
        "ssl.key.password": "hush-4",
        "ssl.endpoint.identification.algorithm": "https",
    }


@pytest.mark.parametrize(
    ("props", "why"),
    [
        ({"security.protocol": "TLS"}, "SASL_SSL"),
        ({"ssl.truststore.location": "t.jks"}, r"type=JKS.*keytool -list -rfc -keystore t\.jks"),
        ({"ssl.keystore.location": "k.p12", "ssl.keystore.type": "PKCS12"}, r"type=PKCS12.*openssl pkcs12"),
        ({"ssl.keystore.key": PEM}, r"add ssl\.keystore\.certificate\.chain"),
        ({"ssl.ca.location": "a", "ssl.truststore.certificates": PEM}, "both set: keep one"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "expected https"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_with_a_way_out(props: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        Security.from_properties({"security.protocol": "SSL"} | props)
    assert "\n" not in str(caught.value)
    assert "MIIB" not in str(caught.value)


@pytest.mark.parametrize(
    ("props", "why"),
    [
        ({"ssl.ca.location": "{tmp}/none.pem"}, r"ssl\.ca\.location=.*none\.pem.*No such file"),
        ({"ssl.ca.location": "{tmp}/bad.pem"}, r"ssl\.ca\.location=.*cannot read certificates"),
        ({"ssl.truststore.certificates": "hush"}, r"ssl\.truststore\.certificates: cannot read certificates"),
        ({"ssl.certificate.location": "{tmp}/none.pem"}, r"ssl\.certificate\.location=.*No such file"),
        (
            {"ssl.keystore.key": "hush", "ssl.keystore.certificate.chain": "hush"},
            r"ssl\.keystore\.certificate\.chain and ssl\.keystore\.key: cannot read a certificate and its private key",
        ),
    ],
)
def test_a_file_that_is_not_there_or_no_pem_is_named(tmp_path: Path, props: dict[str, str], why: str) -> None:
    (tmp_path / "bad.pem").write_text("hush")
    settings = {name: value.format(tmp=tmp_path) for name, value in props.items()}
    security = Security.from_properties({"security.protocol": "SSL"} | settings)
    with pytest.raises(ConfigError, match=why) as caught:
        wrap(None, "localhost", 9093, security)  # type: ignore[arg-type] # never gets as far as the socket
    assert "hush" not in str(caught.value)
