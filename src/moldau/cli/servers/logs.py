"""Structured logs of a server process: one event a line, its fields as `key=value`, or as JSON for machines."""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

from moldau.cli.common import load_server_properties
from moldau.errors import ConfigError
from moldau.log_fields import fields_of

FORMATS = ("text", "json")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


class TextFormatter(logging.Formatter):
    def __init__(self, broker_id: int | None = None) -> None:
        super().__init__()
        self._who = "" if broker_id is None else f"[broker {broker_id}] "

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.created))
        fields = "".join(f" {key}={_quoted(value)}" for key, value in fields_of(record).items())
        head = f"{moment},{int(record.msecs):03d} {record.levelname:<7} {self._who}"
        line = f"{head}{record.getMessage()}{fields} ({record.name})"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    def __init__(self, broker_id: int | None = None) -> None:
        super().__init__()
        self._who = {} if broker_id is None else {"broker": broker_id}

    def format(self, record: logging.LogRecord) -> str:
        event: dict[str, object] = {
            "time_ms": int(record.created * 1000),
            "level": record.levelname,
            **self._who,
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return json.dumps(event, default=str)


def _quoted(value: object) -> str:
    text = str(value)
    return json.dumps(text) if not text or any(char in text for char in ' "=\n') else text


def set_up(
    log_format: str | None, level: str | None, broker_id: int | None = None, *, file: Path | None = None
) -> None:
    """What is None is as `file` says, or text at INFO. `broker_id` is named in every line, where several brokers write
    to one place."""
    settings = _read(file) if file is not None else {}
    log_format = log_format or settings.pop("format", "text")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(broker_id) if log_format == "json" else TextFormatter(broker_id))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level or settings.get("level", "INFO"))
    for name, value in settings.items():
        if name.startswith("level."):
            logging.getLogger(name.removeprefix("level.")).setLevel(value)


def _read(file: Path) -> dict[str, str]:
    """`level`, `format`, and `level.<logger>` of a properties file."""
    result = {}
    for name, value in load_server_properties(file).items():
        is_level = name == "level" or name.startswith("level.")
        allowed = LEVELS if is_level else FORMATS if name == "format" else ()
        result[name] = value.upper() if is_level else value
        if result[name] not in allowed:
            what = f"{name}={value}: expected one of {', '.join(allowed)}" if allowed else f"unknown key {name}"
            raise ConfigError(f"{file}: {what}; the keys are level, format and level.<logger>")
    return result
