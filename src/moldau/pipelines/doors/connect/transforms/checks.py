"""What can be wrong with the configuration of a transform or predicate besides the types of its values.

The words are Kafka's. A value with a reference (`${file:…}`) is not known yet and passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from moldau.pipelines.doors.connect.transforms.casts import OTHER_TYPES, TYPES
from moldau.pipelines.doors.connect.transforms.field_paths import steps_of
from moldau.pipelines.doors.connect.transforms.java_dates import tokens
from moldau.pipelines.model.kinds import has_reference

Given = Mapping[str, str]
Problems = Iterator[tuple[str, str]]
Check = Callable[[Given], Problems]


def invalid(key: str, value: str, reason: str) -> tuple[str, str]:
    return key, f"Invalid value {value} for configuration {key}: {reason}"


def items(text: str) -> tuple[str, ...]:
    """A list as Kafka reads it."""
    return tuple(item.strip() for item in text.split(",")) if text.strip() else ()


def all_of(*checks: Check) -> Check:
    def check(given: Given) -> Problems:
        for each in checks:
            yield from each(given)

    return check


def _known(given: Given, key: str) -> str | None:
    value = given.get(key)
    return None if value is None or has_reference(value) else value


def filled_list(key: str, *, can_repeat: bool = False) -> Check:
    def check(given: Given) -> Problems:
        value = _known(given, key)
        if value is not None and not items(value):
            yield invalid(key, value, "Empty list")
        elif value is not None and not can_repeat:
            yield from unique_list(key)(given)

    return check


def unique_list(key: str) -> Check:
    def check(given: Given) -> Problems:
        names = items(_known(given, key) or "")
        if len({*names}) < len(names):
            yield key, f"Configuration '{key}' values must not be duplicated."

    return check


def filled(key: str) -> Check:
    def check(given: Given) -> Problems:
        if _known(given, key) == "":
            yield invalid(key, "", "String must be non-empty")

    return check


_JAVA_AND_PYTHON = ("unterminated", "missing )", "unbalanced parenthesis", "nothing to repeat", "bad character range")


def java_regex(key: str) -> Check:
    """Errors that patterns of Java and Python have in common; what only Java knows (`\\p{…}`, `\\Q…\\E`) passes."""

    def check(given: Given) -> Problems:
        value = _known(given, key)
        try:
            re.compile(re.sub(r"\(\?<([A-Za-z])", r"(?P<\1", value or ""))
        except re.error as error:
            if error.msg.startswith(_JAVA_AND_PYTHON):
                yield invalid(key, value or "", f"Invalid regex: {error}")

    return check


def java_date_pattern(key: str) -> Check:
    def check(given: Given) -> Problems:
        value = _known(given, key)
        try:
            tokens(value or "")
        except ValueError as error:
            yield invalid(key, value or "", f"not a pattern of java.text.SimpleDateFormat: {error}")

    return check


def cast_spec(given: Given) -> Problems:
    value = _known(given, "spec")
    if value is None:
        return
    pairs = [pair.split(":") for pair in items(value)]
    if not pairs:
        yield invalid("spec", value, "Must specify at least one field to cast.")
    for pair in pairs:
        kind = pair[-1].strip()
        if len(pair) > 2:
            yield invalid("spec", value, f"Invalid cast: {':'.join(pair)}. Each is a type or field:type")
        elif kind.lower() in OTHER_TYPES:
            yield invalid("spec", value, f"Cast transformation does not support casting to {kind.upper()}; {_TYPES}")
        elif kind.lower() not in TYPES:
            yield invalid("spec", value, f"Invalid type found in casting spec: {kind}; {_TYPES}")
    if len(pairs) > 1 and any(len(pair) == 1 for pair in pairs):
        yield invalid(
            "spec",
            value,
            "Cast transformations that specify a type to cast the entire value to may only specify a single cast in "
            "their spec",
        )


_TYPES = f"supported types are {', '.join(TYPES)}"


def field_path(given: Given) -> Problems:
    path, version = _known(given, "field"), given.get("field.syntax.version", "V1")
    if path is None:
        return
    try:
        steps_of(path, version)
    except ValueError as error:
        yield "field", str(error)


def insertion(given: Given) -> Problems:
    keys = [f"{each}.field" for each in ("topic", "partition", "offset", "timestamp", "static")]
    if not any(key in given for key in keys):
        yield "static.field", f"No field insertion configured. Set one or more of {', '.join(keys)}"
    if "static.field" in given and "static.value" not in given:
        yield "static.value", f"No value specified for static field: {given['static.field']}"


def renames(given: Given) -> Problems:
    value = _known(given, "renames") or ""
    for pair in items(value):
        if len([part for part in pair.split(":") if part]) != 2 or pair.count(":") != 1:
            yield invalid("renames", value, f"Invalid rename mapping: {pair}. Each is old:new")


def schema_metadata(given: Given) -> Problems:
    if "schema.name" not in given and "schema.version" not in given:
        yield "schema.name", "Neither schema name nor version configured"


def timestamp_format(given: Given) -> Problems:
    if given.get("target.type") == "string" and not given.get("format", "").strip():
        yield "format", "TimestampConverter requires format option to be specified when using string timestamps"
    yield from java_date_pattern("format")(given)


def as_many_headers(given: Given) -> Problems:
    fields, headers = _known(given, "fields"), _known(given, "headers")
    if fields is not None and headers is not None and len(items(fields)) != len(items(headers)):
        yield "fields", "'fields' config must have the same number of elements as 'headers' config."


def added_fields(given: Given) -> Problems:
    for key in ("add.fields", "add.headers"):
        for each in items(_known(given, key) or ""):
            if each.count(":") > 1:
                yield invalid(key, given[key], f"Unexpected field name: {each}")
    if "drop.fields.header.name" in given:
        yield (
            "drop.fields.header.name",
            "Fields cannot be dropped by a list in each record's header: the records of a batch have one schema. "
            "Use the transform ReplaceField with `exclude`",
        )
