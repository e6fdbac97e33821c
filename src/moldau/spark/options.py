"""Options of a Spark source or sink, as Spark passes them: strings, with case-insensitive names.

`read_options` and `write_options` define the options of each. This module has what both share: lookup, conversion with
errors that say what to do, and the `kafka.*` properties of the client.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

from moldau.client.config import ClientConfig
from moldau.client.property_names import CLIENT_PROPERTIES, OPEN_ENDED
from moldau.config.keys import nearest
from moldau.errors import ConfigError

KAFKA_PREFIX = "kafka."
QUERY_ID = "sql.streaming.queryId"  # where Spark tells a query's tasks, and its foreachBatch, whose they are
CONNECTORS = ("moldau", "jvm")
HEADER_PREFIX = "__connect.errors."  # of the headers of a dead letter, as in Kafka Connect
# A record that came out of a topic should fit into another with a few more headers: let the broker judge.
DEAD_LETTER_BYTES_MAX = 100 * 1024 * 1024

_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_NUMBER_MAX = 2**63 - 1  # what Spark and Kafka count in

# Of typed topics (`formats`): here, where their names cost no import of a format's packages.
TYPED_COLUMNS = ("key", "value")
FORMAT_OPTIONS = (
    *(
        f"{column}.{name}"
        for column in TYPED_COLUMNS
        for name in ("format", "schema", "schema.sample", "writer.schema", "descriptor", "message")
    ),
    "columnNameOfCorruptRecord",
    "errors.tolerance",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.headers",
)


def option_text(value: object) -> str:
    """A value as Spark writes it: its flags are in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


logger = logging.getLogger(__name__)


class Options:
    """A case-insensitive view; `kafka.*` names keep their spelling in lower case, as Kafka's are."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        return default if value is None else value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if value.strip().lower() not in ("true", "false"):
            raise ConfigError(f"option {name}={value}: expected true or false")
        return value.strip().lower() == "true"

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        value = self.get(name)
        if value is None:
            return default
        text = value.strip()
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= _NUMBER_MAX:
            raise ConfigError(f"option {name}={value}: expected a whole number, {least} or more")
        return int(text)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self.text(name, default).strip().lower()
        if value not in choices:
            raise ConfigError(f"option {name}={value}: expected one of {', '.join(choices)}")
        return value

    def kafka_properties(self) -> dict[str, str]:
        """What was given as `kafka.<property>`, under Kafka's own names."""
        return {
            name.removeprefix(KAFKA_PREFIX): value
            for name, value in self._values.items()
            if name.startswith(KAFKA_PREFIX)
        }

    def client_config(self, client_id: str) -> ClientConfig:
        properties = self.kafka_properties()
        servers = properties.get("bootstrap.servers", "")
        if not servers.strip():
            raise ConfigError(
                'option kafka.bootstrap.servers is missing: add .option("kafka.bootstrap.servers", "localhost:9092")'
            )
        return ClientConfig.from_properties(servers, {"client.id": client_id} | properties)

    def connector(self) -> str:
        return self.choice("connector", CONNECTORS, "moldau")

    def refuse_other_connector(self) -> None:
        if self.connector() != "moldau":
            raise ConfigError(
                'option connector: format("moldau") cannot switch to another connector: use '
                'moldau.spark.apply_options(spark.readStream, {"connector": "jvm", …})'
            )

    def refuse_misspelt(self, known: Iterable[str]) -> None:
        """Spark passes options of its own, so unknown names are accepted unless they are close to one of ours."""
        names = {name.lower(): name for name in known}
        for given in self._values:
            if given in names or given.startswith(KAFKA_PREFIX):
                continue
            meant = nearest(given, names)
            if meant:
                raise ConfigError(f"unknown option '{given}': did you mean '{names[meant]}'?")

    def warn_of_unknown_properties(self) -> None:
        """Not an error: Kafka's own clients ignore such properties, too, and a plug-in of theirs may have some."""
        for name in self.kafka_properties():
            if name in CLIENT_PROPERTIES or name.startswith(OPEN_ENDED):
                continue
            meant = nearest(name, CLIENT_PROPERTIES)
            hint = f": did you mean '{KAFKA_PREFIX}{meant}'?" if meant else ""
            logger.warning("option '%s%s' is unknown and has no effect%s", KAFKA_PREFIX, name, hint)
