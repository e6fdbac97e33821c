"""The settings of a worker: the keys of Kafka Connect's `worker.properties`, and a few of our own."""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from moldau.client.librdkafka import to_librdkafka
from moldau.errors import ConfigError
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.references import resolve
from moldau.pipelines.worker.records import Topic

DEFAULT_LISTENER = "http://127.0.0.1:8083"
_TOPICS = {Topic.CONFIG: "connect-configs", Topic.OFFSET: "connect-offsets", Topic.STATUS: "connect-status"}
_PARTITIONS = {Topic.CONFIG: 1, Topic.OFFSET: 25, Topic.STATUS: 5}  # Connect's; the first is fixed
_CLIENT_PREFIXES = ("bootstrap.servers", "security.", "ssl.", "sasl.", "client.dns.lookup")
_ALLOW = "moldau.rest.allow.unauthenticated"


class StateTopic(NamedTuple):
    name: str
    partitions: int
    replication_factor: int  # -1: the broker's default


@dataclass(frozen=True)
class Listener:
    host: str
    port: int
    is_tls: bool = False

    @classmethod
    def parse(cls, text: str) -> Listener:
        """`http://host:port`, `host:port`, or `http://:port` for all interfaces."""
        parts = urlsplit(text.strip() if "://" in text else f"http://{text.strip()}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme.lower() not in ("http", "https") or port is None:
            raise ConfigError(f"listener {text}: expected http://host:port or https://host:port")
        return cls(parts.hostname or "0.0.0.0", port, parts.scheme.lower() == "https")

    @property
    def is_local(self) -> bool:
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass(frozen=True)
class WorkerConfig:
    properties: Mapping[str, str]  # as given
    folder: Path  # relative paths are below it

    @property
    def group_id(self) -> str:
        return self.properties.get("group.id", "connect-cluster")

    @property
    def transactional_id(self) -> str:
        """As Connect's leader has."""
        return f"connect-cluster-{self.group_id}"

    @property
    def checkpoint_folder(self) -> str | None:
        """A folder that all workers share; None: the offset topic has copies of what is small."""
        return self.properties.get("moldau.checkpoint.dir") or None

    def topic(self, which: Topic) -> StateTopic:
        prefix = f"{which}.storage"
        name = self.properties.get(f"{prefix}.topic", _TOPICS[which])
        partitions = 1 if which is Topic.CONFIG else self._number(f"{prefix}.partitions", _PARTITIONS[which])
        return StateTopic(name, partitions, self._number(f"{prefix}.replication.factor", -1))

    def client(self) -> dict[str, Any]:
        """Of librdkafka: where the cluster is, and how to prove who we are."""
        given = {"bootstrap.servers": "localhost:9092"} | {
            name: value for name, value in self.resolved().items() if name.startswith(_CLIENT_PREFIXES)
        }
        ours = {"client.id": f"moldau-worker-{self.group_id}", "logger": logging.getLogger("librdkafka")}
        return to_librdkafka(given)[0] | ours

    def resolved(self) -> dict[str, str]:
        """With what references stand for. Never stored or shown."""
        given = {name: Given(value) for name, value in self.properties.items()}
        return {name: str(found.value) for name, found in resolve(given, self.folder).items()}

    @property
    def listener(self) -> Listener:
        listeners = self.properties.get("listeners", "")
        if listeners:
            first, *others = (part for part in listeners.split(",") if part.strip())
            if others:
                raise ConfigError(f"listeners={listeners}: a worker listens on one address")
            found = Listener.parse(first)
        elif "rest.port" in self.properties:
            found = Listener(self.properties.get("rest.host.name") or "127.0.0.1", self._number("rest.port", 8083))
        else:
            found = Listener.parse(DEFAULT_LISTENER)
        if not found.is_local and self.passwords_file is None and self.properties.get(_ALLOW) != "true":
            raise ConfigError(
                f"the REST interface would be open to everyone who reaches {found.host}:{found.port}: listen on "
                f"127.0.0.1, set rest.basic.auth.file=FILE with lines of user:password, or {_ALLOW}=true"
            )
        return found

    @property
    def passwords_file(self) -> Path | None:
        given = self.properties.get("rest.basic.auth.file")
        return self.folder / given if given else None

    def advertised(self, listener: Listener) -> str:
        """Where other workers find this one."""
        host = self.properties.get("rest.advertised.host.name") or listener.host
        if host in ("0.0.0.0", "::"):
            host = socket.getfqdn()
        port = self._number("rest.advertised.port", listener.port)
        scheme = self.properties.get("rest.advertised.listener") or ("https" if listener.is_tls else "http")
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"

    def tls_files(self) -> dict[str, str]:
        """The certificate and key of an https listener, in PEM files, as uvicorn names them."""
        values = self.resolved()
        names = {"ssl_certfile": "ssl.keystore.location", "ssl_keyfile": "ssl.key.location"}
        names |= {"ssl_keyfile_password": "ssl.key.password", "ssl_ca_certs": "ssl.truststore.location"}
        found = {
            ours: value
            for ours, name in names.items()
            if (value := values.get(f"listeners.https.{name}", values.get(name)))
        }
        if "ssl_certfile" not in found:
            raise ConfigError(
                "an https listener needs listeners.https.ssl.keystore.location: a PEM file with certificate and key"
            )
        return {name: value if name.endswith("password") else str(self.folder / value) for name, value in found.items()}

    def _number(self, key: str, default: int) -> int:
        text = self.properties.get(key, str(default)).strip()
        try:
            return int(text)
        except ValueError:
            raise ConfigError(f"{key}={text}: expected a number") from None
