"""A connector's configuration as a pipeline.

A source connector: its sources → `…_records` (rows become records) → `…_transform_<alias>` each → `…_converter` (key
and value become bytes) → the topic sink. A sink connector: the topics' records as bytes → a sink whose batch steps
decode the records of each micro-batch, transform them, and make the rows that its counterpart gets.

Its checkpoint is its place: the same configuration continues where it was. Records are written to topics exactly once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.catalog import CONNECTORS, find_plugin
from moldau.pipelines.doors.connect.config import (
    CONNECTOR_CLASS,
    CONVERTERS,
    DEAD_LETTER_TOPIC,
    NAME,
    PREDICATES,
    RETRY_DELAY,
    TOLERANCE,
    TOPICS,
    TOPICS_REGEX,
    TRANSFORMS,
    check_topics,
    common_table,
    misspelt,
    part,
    with_worker_converters,
)
from moldau.pipelines.doors.connect.plugins import (
    RECORD_COLUMNS,
    ConnectorConfig,
    Frames,
    Plugin,
    PluginKind,
    SinkParts,
    SourceParts,
)
from moldau.pipelines.doors.connect.splitting import in_parts
from moldau.pipelines.doors.connect.tolerance import Tolerance
from moldau.pipelines.doors.connect.topic_creation import TopicCreation
from moldau.pipelines.model.common_options import DEAD_LETTERS
from moldau.pipelines.model.options import Given, OptionTable, Value
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source, Step
from moldau.pipelines.model.references import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

RECORDS = "records"  # the source of a sink connector
_TYPES = {
    "topic": "STRING",
    "partition": "INT",
    "key": "BINARY",
    "value": "BINARY",
    "timestamp": "TIMESTAMP",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
}
_METADATA = "key, topic, partition, offset, timestamp, timestampType, headers"
_CLIENT_PREFIXES = ("security.", "sasl.", "ssl.")


def to_pipeline(
    name: str, config: Mapping[str, str], worker: Mapping[str, str], checkpoint: str, folder: Path | None = None
) -> Pipeline:
    """`folder`: relative paths are below it; by default the working directory."""
    return _Translation(name, {**config, NAME: name}, worker, checkpoint, folder or Path.cwd()).pipeline()


class _Translation:
    def __init__(
        self, name: str, config: Mapping[str, str], worker: Mapping[str, str], checkpoint: str, folder: Path
    ) -> None:
        self._name = name
        self._given = config
        self._worker = worker
        self._checkpoint = checkpoint
        self._folder = folder
        self._config = with_worker_converters(config, worker)
        if not config.get(CONNECTOR_CLASS):
            raise ConfigError(f"connector {name} has no {CONNECTOR_CLASS}: add for example FileStreamSource")
        self._plugin = find_plugin(config[CONNECTOR_CLASS], *CONNECTORS)
        self._values = self._values_of(common_table(self._plugin), self._config, f"connector {name}")

    def pipeline(self) -> Pipeline:
        self._warn()
        for key, message in self._plugin.check(self._config):
            raise ConfigError(f"connector {self._name}: {key}: {message}")
        own = self._values_of(self._plugin.options, self._given, f"connector {self._name}")
        parts = self._plugin.build(ConnectorConfig(self._name, self._given, own, self._folder))
        if isinstance(parts, SourceParts):
            return self._from_source(parts)
        return self._to_sink(parts)

    def _warn(self) -> None:
        for key, meant in misspelt(self._given, self._plugin):
            logger.warning("connector %s: unknown key %s is ignored: did you mean %s?", self._name, key, meant)

    def _from_source(self, parts: SourceParts) -> Pipeline:
        steps: list[Step] = []
        sinks: list[Sink] = []
        transforms = tuple(self._transforms())
        creation = TopicCreation.of(self._given)
        creating = (creation.creating(self._kafka(), self._folder),) if creation else ()
        for source in parts.sources:
            records = parts.records if callable(parts.records) else parts.records[source.name]
            view = source.name
            chain = (
                (RECORDS, _completed(records)),
                *((f"transform_{alias}", each) for alias, each in transforms),
                ("converter", self._encode()),
            )
            batch_steps: tuple[Frames, ...] = ()
            if parts.split is not None:
                columns = ", ".join(f"{name} {kind}" for name, kind in _TYPES.items())
                batch_steps = (in_parts(parts.split, [function for _, function in chain], columns),)
                chain = ()
            for name, function in chain:
                steps.append(Step(f"{source.name}_{name}", python=function, inputs=(view,)))
                view = steps[-1].name
            options = {"format": Given("bytes"), **self._clients("producer")}
            sinks.append(
                Sink(f"{source.name}_topic", view, "topic", options=options, batch_steps=(*batch_steps, *creating))
            )
        return Pipeline(
            _file_name(self._name),
            sources=parts.sources,
            steps=tuple(steps),
            sinks=tuple(sinks),
            settings=self._settings(),
            folder=self._folder,
        )

    def _to_sink(self, parts: SinkParts) -> Pipeline:
        for key, message in check_topics(self._config):
            raise ConfigError(f"connector {self._name}: {key}: {message}")
        functions = tuple(function for _, function in self._transforms())
        sink = Sink(
            "sink",
            RECORDS,
            parts.connector,
            options=parts.options,
            batch_steps=(self._decode(), *functions, parts.rows),
        )
        return Pipeline(
            _file_name(self._name),
            sources=(Source(RECORDS, "topic", {**self._subscription(), **parts.source}),),
            sinks=(sink,),
            settings=self._settings(),
            folder=self._folder,
        )

    def _subscription(self) -> dict[str, Given]:
        clients = self._clients("consumer")
        start = clients.pop("kafka.auto.offset.reset", Given("earliest"))
        # Topics by pattern may come later, as for Connect's consumers; named ones would have to exist.
        pattern = self._values.get(TOPICS_REGEX) or "|".join(map(_literal, self._values[TOPICS]))
        return {
            "subscribePattern": Given(pattern),
            "metadata": Given(_METADATA),
            "startingOffsets": start if start.value in ("earliest", "latest") else Given("earliest"),
            "failOnDataLoss": Given("false"),  # Connect's consumers go on from what is there, too
            "commitGroupId": clients.pop("kafka.group.id", Given(f"connect-{self._name}")),
            **clients,
        }

    def _settings(self) -> dict[str, Given]:
        settings = {"checkpoint": Given(self._checkpoint), **self._kafka()}
        if RETRY_DELAY in self._given:
            settings["restart delay max"] = Given(f"{self._values[RETRY_DELAY]} ms")
        letters = self._values.get(DEAD_LETTER_TOPIC)
        if letters and self._values[TOLERANCE] == "all":
            settings[DEAD_LETTERS] = Given(letters)
        return settings

    def _kafka(self) -> dict[str, Given]:
        return {
            f"kafka.{name}": Given(value)
            for name, value in self._worker.items()
            if name == "bootstrap.servers" or name.startswith(_CLIENT_PREFIXES)
        }

    def _clients(self, client: str) -> dict[str, Given]:
        """The worker's settings of its consumers or producers, overridden by the connector's."""
        own = part(self._worker, f"{client}.") | part(self._config, f"{client}.override.")
        return {f"kafka.{name}": Given(value) for name, value in own.items()}

    def _transforms(self) -> Iterator[tuple[str, Frames]]:
        for alias in self._values[TRANSFORMS]:
            given = part(self._config, f"{TRANSFORMS}.{alias}.")
            predicate, negate = given.pop("predicate", None), given.pop("negate", "false")
            maker = None if predicate is None else self._predicate(predicate, is_negated=negate.lower() == "true")
            plugin, values = self._plugin_of(f"transform {alias}", given, PluginKind.TRANSFORMATION)
            yield alias, plugin.build(values, maker)

    def _predicate(self, alias: str, *, is_negated: bool) -> Callable[..., Any]:
        if alias not in self._values[PREDICATES]:
            raise ConfigError(f"connector {self._name}: predicate {alias} is not among {PREDICATES}")
        given = part(self._config, f"{PREDICATES}.{alias}.")
        plugin, values = self._plugin_of(f"predicate {alias}", given, PluginKind.PREDICATE)
        maker: Callable[..., Any] = plugin.build(values)
        return (lambda *arguments: ~maker(*arguments)) if is_negated else maker

    def _plugin_of(self, owner: str, given: Mapping[str, str], kind: PluginKind) -> tuple[Plugin, Mapping[str, Value]]:
        owner = f"connector {self._name}: {owner}"
        if not given.get("type"):
            raise ConfigError(f"{owner} has no type")
        try:
            plugin = find_plugin(given["type"], kind)
        except ConfigError as error:
            raise ConfigError(f"{owner}: {error}") from error
        for key, message in plugin.check(given):
            raise ConfigError(f"{owner}: {key}: {message}")
        return plugin, self._values_of(plugin.options, given, owner)

    def _converter(self, name: str) -> Any:
        found = self._config.get(name)
        owner = f"connector {self._name}: {name}"
        if not found:
            raise ConfigError(f"{owner} is not set, neither here nor in the worker's configuration")
        try:
            plugin = find_plugin(found, PluginKind.CONVERTER)
        except ConfigError as error:
            raise ConfigError(f"{owner}: {error}") from error
        return plugin.build(self._values_of(plugin.options, part(self._config, f"{name}."), owner))

    def _encode(self) -> Frames:
        key, value = (self._converter(name) for name in CONVERTERS[:2])

        def encode(frame: DataFrame) -> DataFrame:
            return value.encode(key.encode(frame, "key"), "value").select(*RECORD_COLUMNS)  # type: ignore[no-any-return]

        return encode

    def _decode(self) -> Frames:
        key, value = (self._converter(name) for name in CONVERTERS[:2])
        tolerance = Tolerance(
            self._name,
            is_tolerant=self._values[TOLERANCE] == "all",
            is_logged=self._values["errors.log.enable"],
            topic=self._values.get(DEAD_LETTER_TOPIC) or None,
            kafka={**self._kafka(), **self._clients("producer")},
            folder=self._folder,
        )
        return tolerance.decoding({"key": key, "value": value})

    def _values_of(self, table: OptionTable, given: Mapping[str, str], owner: str) -> dict[str, Value]:
        """Converted values with defaults. Keys that are not in the table are somebody else's."""
        known = {key: Given(value) for key, value in given.items() if table.find(key) is not None}
        for problem in table.check(known, owner, None):
            raise ConfigError(problem.message)
        return table.values(resolve(known, self._folder))


def _file_name(connector: str) -> str:
    """The name of its pipeline, which is also that of folders; Connect's names may be anything."""
    return connector.replace("%", "%25").replace("/", "%2F")


def _literal(topic: str) -> str:
    """Topics have letters, digits, dots, hyphens and underscores, of which only the dot means more in a pattern."""
    return topic.replace(".", r"\.")


def _completed(records: Frames) -> Frames:
    """Records with all columns; those that a connector leaves out are null."""

    def complete(frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        found = records(frame)
        missing = {name: F.lit(None).cast(kind) for name, kind in _TYPES.items() if name not in found.columns}
        return found.withColumns(missing) if missing else found

    return complete
