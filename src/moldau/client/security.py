"""TLS and SASL settings of a client, read from Java's and librdkafka's property names alike.

Keys and certificates are PEM, as files (Kafka's `ssl.*.type=PEM`, librdkafka's `ssl.ca.location` and friends) or as
text in the properties themselves (`ssl.keystore.key` …), which needs no file on any executor. Java's own stores
cannot be read without another dependency: the error says how to convert them. What the settings do is in `tls` and
`sasl`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from moldau.config.listeners import SECURITY_PROTOCOLS
from moldau.errors import ConfigError

_JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|([\w.$-]+))""")
_PEM_BLOCK = re.compile(r"(-----BEGIN [^-]+-----)([A-Za-z0-9+/=\s]+)(-----END [^-]+-----)")

_TO_PEM = {
    "ssl.truststore": "keytool -list -rfc -keystore {0} > {0}.pem",
    "ssl.keystore": "keytool -importkeystore -srckeystore {0} -destkeystore {0}.p12 -deststoretype PKCS12, "
    "openssl pkcs12 -in {0}.p12 -out {0}.pem",
}


@dataclass(frozen=True, repr=False)
class Secret:
    """Text that is not shown when the settings around it are printed, logged or part of an error."""

    value: str

    def __repr__(self) -> str:
        return "[hidden]"


class Pem(NamedTuple):
    """A PEM file, or its text; `property` is where it was set, for the errors about it."""

    property: str
    location: str = ""
    text: Secret | None = None


class Security(NamedTuple):
    """Goes to Spark's tasks, pickled; whatever prints it shows no password and no key."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = ""
    password: Secret = Secret("")
    ca: Pem | None = None  # None: those the system trusts
    certificate: Pem | None = None
    key: Pem | None = None  # None: in the certificate's file
    key_password: Secret | None = None
    verify_host: bool = True

    @classmethod
    def from_properties(cls, props: Mapping[str, str]) -> Security:
        protocol = props.get("security.protocol", "PLAINTEXT").strip().upper()
        if protocol not in SECURITY_PROTOCOLS:
            raise ConfigError(f"security.protocol={protocol}: expected one of {', '.join(SECURITY_PROTOCOLS)}")
        jaas = parse_jaas(props.get("sasl.jaas.config", ""))
        certificate = _pem(
            props, "ssl.keystore", "ssl.certificate.location", "ssl.keystore.certificate.chain", "ssl.certificate.pem"
        )
        key = _pem(props, "ssl.keystore", "ssl.key.location", "ssl.keystore.key", "ssl.key.pem")
        if key is not None and certificate is None:
            raise ConfigError(f"{key.property} is set without a certificate: add ssl.keystore.certificate.chain")
        key_password = props.get("ssl.key.password")
        return cls(
            protocol=protocol,
            mechanism=(props.get("sasl.mechanism") or props.get("sasl.mechanisms", "")).strip().upper(),
            username=props.get("sasl.username") or jaas.get("username", ""),
            password=Secret(props.get("sasl.password") or jaas.get("password", "")),
            ca=_pem(props, "ssl.truststore", "ssl.ca.location", "ssl.truststore.certificates", "ssl.ca.pem"),
            certificate=certificate,
            key=key,
            key_password=Secret(key_password) if key_password else None,
            verify_host=_verifies_host(props),
        )

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    def librdkafka(self) -> dict[str, str]:
        """The same settings under librdkafka's names, secrets and all; empty for a plain connection."""
        if self.protocol == "PLAINTEXT":
            return {}
        settings = {"security.protocol": self.protocol}
        if self.uses_tls:
            settings["ssl.endpoint.identification.algorithm"] = "https" if self.verify_host else "none"
        for name, pem in (("ssl.ca", self.ca), ("ssl.certificate", self.certificate), ("ssl.key", self.key)):
            if pem is not None:
                settings |= {f"{name}.pem": pem.text.value} if pem.text else {f"{name}.location": pem.location}
        optional = {
            "ssl.key.password": self.key_password.value if self.key_password else "",
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.username,
            "sasl.password": self.password.value,
        }
        return settings | {name: value for name, value in optional.items() if value}


def parse_jaas(text: str) -> dict[str, str]:
    """The options of a JAAS line: `…PlainLoginModule required username="a" password="b";`."""
    return {
        name: re.sub(r"\\(.)", r"\1", quoted) or single or bare
        for name, quoted, single, bare in _JAAS_OPTION.findall(text)
    }


def _verifies_host(props: Mapping[str, str]) -> bool:
    name = "ssl.endpoint.identification.algorithm"
    algorithm = props.get(name, "https").strip().lower()
    if algorithm not in ("https", "", "none"):
        raise ConfigError(f"{name}={algorithm}: expected https, or an empty value to accept any host name")
    return algorithm == "https"


def _pem(props: Mapping[str, str], store: str, location: str, *texts: str) -> Pem | None:
    """One of the ways to give it; which one wins would be a guess."""
    found = [Pem(name, text=Secret(_in_lines(props[name]))) for name in texts if props.get(name)]
    found += [Pem(name, location=props[name].strip()) for name in (location, f"{store}.location") if props.get(name)]
    if len(found) > 1:
        raise ConfigError(f"{found[0].property} and {found[1].property} are both set: keep one of them")
    kind = props.get(f"{store}.type", "JKS").strip().upper()
    if found and found[0].property == f"{store}.location" and kind != "PEM":
        path = found[0].location
        raise ConfigError(
            f"{store}.type={kind}: only PEM is supported; convert {path} ({_TO_PEM[store].format(path)}), "
            f"then set {store}.type=PEM"
        )
    return found[0] if found else None


def _in_lines(pem: str) -> str:
    """Kafka takes PEM on one line, too; OpenSSL wants lines of 64."""
    if "\n" in pem.strip():
        return pem
    return _PEM_BLOCK.sub(
        lambda block: "\n".join((block[1], *textwrap.wrap("".join(block[2].split()), 64), block[3], "")), pem
    )
