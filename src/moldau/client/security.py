"""TLS and SASL settings of a client, read from Java's and librdkafka's property names alike.

Stores are PEM files (Kafka's `ssl.*.type=PEM`, or librdkafka's `ssl.ca.location` and friends). Java key
stores cannot be read here: the error says how to convert them.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from typing import NamedTuple

from moldau.errors import ConfigError

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)')""")


class Security(NamedTuple):
    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: str = ""
    ca_location: str | None = None
    certificate_location: str | None = None
    key_location: str | None = None
    key_password: str | None = None
    verify_host: bool = True

    @classmethod
    def from_properties(cls, props: Mapping[str, str]) -> Security:
        protocol = props.get("security.protocol", "PLAINTEXT").strip().upper()
        if protocol not in _PROTOCOLS:
            raise ConfigError(f"security.protocol={protocol}: expected one of {', '.join(_PROTOCOLS)}")
        jaas = parse_jaas(props.get("sasl.jaas.config", ""))
        trust = _pem(props, "ssl.truststore")
        key = _pem(props, "ssl.keystore")
        identification = props.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
        return cls(
            protocol=protocol,
            mechanism=(props.get("sasl.mechanism") or props.get("sasl.mechanisms", "")).strip().upper(),
            username=props.get("sasl.username") or jaas.get("username", ""),
            password=props.get("sasl.password") or jaas.get("password", ""),
            ca_location=props.get("ssl.ca.location") or trust,
            certificate_location=props.get("ssl.certificate.location") or key,
            key_location=props.get("ssl.key.location") or key,
            key_password=props.get("ssl.key.password"),
            verify_host=identification not in ("", "none"),
        )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def wrap(self, sock: socket.socket, host: str) -> socket.socket:
        """The socket as it should be spoken on: TLS around it when the protocol says so."""
        if not self.uses_tls:
            return sock
        import ssl  # most connections are plain, and it takes milliseconds to load

        context = ssl.create_default_context(cafile=self.ca_location)
        context.check_hostname = self.verify_host
        if self.certificate_location is not None:
            context.load_cert_chain(self.certificate_location, self.key_location, self.key_password)
        return context.wrap_socket(sock, server_hostname=host)

    def sasl_plain_token(self) -> bytes:
        """The one message of SASL PLAIN. Other mechanisms are librdkafka's so far."""
        if self.mechanism != "PLAIN":
            raise ConfigError(f"sasl.mechanism={self.mechanism or '(none)'}: this command speaks PLAIN only")
        if not self.username:
            raise ConfigError("sasl.jaas.config: username and password are needed for SASL PLAIN")
        return b"\0" + self.username.encode() + b"\0" + self.password.encode()

    def librdkafka(self) -> dict[str, str]:
        """The same settings under librdkafka's names; empty for a plain connection."""
        if self.protocol == "PLAINTEXT":
            return {}
        settings = {"security.protocol": self.protocol}
        if self.uses_tls:
            settings["ssl.endpoint.identification.algorithm"] = "https" if self.verify_host else "none"
        optional = {
            "ssl.ca.location": self.ca_location,
            "ssl.certificate.location": self.certificate_location,
            "ssl.key.location": self.key_location,
            "ssl.key.password": self.key_password,
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password,
        }
        return settings | {name: value for name, value in optional.items() if value}


def parse_jaas(text: str) -> dict[str, str]:
    """The options of a JAAS line: `…PlainLoginModule required username="a" password="b";`."""
    return {
        name: quoted.replace('\\"', '"').replace("\\\\", "\\") or single
        for name, quoted, single in _JAAS_OPTION.findall(text)
    }


def _pem(props: Mapping[str, str], prefix: str) -> str | None:
    location = props.get(f"{prefix}.location")
    if location is None:
        return None
    kind = props.get(f"{prefix}.type", "JKS").strip().upper()
    if kind != "PEM":
        raise ConfigError(
            f"{prefix}.type={kind}: only PEM can be read here; convert {location} with keytool and openssl, "
            f"then set {prefix}.type=PEM"
        )
    return location
