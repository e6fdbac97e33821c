"""`topic.creation.*`: topics that a source connector creates, with the settings of the first group that fits.

Without these keys, brokers create topics when they are first written to.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.config import part
from moldau.pipelines.doors.connect.plugins import Frames
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.references import resolve

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PREFIX = "topic.creation."
_DEFAULT = "default"
_NEEDED = ("replication.factor", "partitions")
_BROKERS_CHOICE = "-1"


@dataclass(frozen=True)
class _Group:
    settings: Mapping[str, str]  # `partitions`, `replication.factor` and configurations of topics
    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()

    def fits(self, topic: str) -> bool:
        def one_of(patterns: tuple[str, ...]) -> bool:
            return any(re.fullmatch(pattern, topic) for pattern in patterns)

        return one_of(self.include) and not one_of(self.exclude)


@dataclass(frozen=True)
class TopicCreation:
    groups: tuple[_Group, ...]  # the default one is last, and fits always

    @classmethod
    def of(cls, config: Mapping[str, str]) -> TopicCreation | None:
        """None if the connector creates no topics."""
        default = part(config, f"{_PREFIX}{_DEFAULT}.")
        aliases = _listed(config.get(f"{_PREFIX}groups", ""))
        if not default and not aliases:
            return None
        for name in _NEEDED:
            if name not in default:
                raise ConfigError(f"{_PREFIX}{_DEFAULT}.{name} is missing: a connector that creates topics needs it")
        own = (part(config, f"{_PREFIX}{alias}.") for alias in aliases if alias != _DEFAULT)
        numbers = {name: default[name] for name in _NEEDED}
        return cls((*(_group(numbers | given) for given in own), _group(default | {"include": ".*"})))

    def settings(self, topic: str) -> dict[str, str]:
        return dict(next(group for group in self.groups if group.fits(topic)).settings)

    def creating(self, kafka: Mapping[str, Given], folder: Path) -> Frames:
        """The batch step that creates the topics of the records that come."""
        known: set[str] = set()

        def create(frame: DataFrame) -> DataFrame:
            from moldau.pipelines.connectors.topic import create_topic_if_missing

            client = {name: str(given.value) for name, given in resolve(kafka, folder).items()}
            for (topic,) in frame.select("topic").distinct().collect():
                if topic not in known:
                    create_topic_if_missing(client, topic, self.settings(topic))
                    known.add(topic)
            return frame

        return create


def _group(given: Mapping[str, str]) -> _Group:
    settings = {name: value for name, value in given.items() if name not in ("include", "exclude")}
    chosen = {name: value for name, value in settings.items() if name not in _NEEDED or value != _BROKERS_CHOICE}
    return _Group(chosen, _listed(given.get("include", "")), _listed(given.get("exclude", "")))


def _listed(text: str) -> tuple[str, ...]:
    return tuple(item.strip() for item in text.split(",") if item.strip())
