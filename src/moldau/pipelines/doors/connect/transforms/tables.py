"""The tables of transforms and predicates that a connector's configuration can name.

`build` of a transform gets the values of its options, the condition of its predicate if it has one, and whether that is
negated; it gives a function from the records before to those after. `build` of a predicate gives what makes its
condition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from moldau.pipelines.doors.connect.plugins import Frames, Plugin, PluginKind
from moldau.pipelines.doors.connect.transforms import checks, envelope, fields, masks, predicates, routing, times
from moldau.pipelines.doors.connect.transforms.fields import Values
from moldau.pipelines.doors.connect.transforms.records import Predicate, Transform, steps
from moldau.pipelines.model.kinds import BOOLEAN, TEXT, Kind, choice, whole
from moldau.pipelines.model.options import Option, OptionTable

_PACKAGE = "org.apache.kafka.connect.transforms"

Make = Callable[[Values, str], Transform]


def _list(value: Any) -> tuple[str, ...]:
    if not isinstance(value, str):
        raise ValueError("expected names with commas between them")
    return checks.items(value)


def _any_case(*allowed: str, to: Callable[[str], str] = str.lower) -> Kind:
    exact = choice(*allowed)
    return Kind(exact.name, lambda value: exact.convert(to(str(value).strip())), exact.schema)


LIST = Kind("list", _list, {"type": "string"})
_INT32 = whole(-(2**31))

_DEFAULTS = Option(
    "replace.null.with.default",
    "Accepted for compatibility. Fields have no default values here, so null stays null.",
    BOOLEAN,
    default=True,
)


def _builder(make: Make, on: str) -> Callable[..., Frames]:
    def build(values: Values, predicate: Predicate | None = None, negate: bool = False) -> Frames:
        return steps(make(values, on), predicate, negate)

    return build


def _transform(name: str, make: Make, *options: Option, check: checks.Check = lambda _: iter(())) -> Plugin:
    return Plugin((name,), PluginKind.TRANSFORMATION, OptionTable(options), _builder(make, "value"), check)


def _of_key_and_value(
    name: str, make: Make, *options: Option, check: checks.Check = lambda _: iter(())
) -> tuple[Plugin, ...]:
    return tuple(
        Plugin(
            (f"{_PACKAGE}.{name}${on.capitalize()}",),
            PluginKind.TRANSFORMATION,
            OptionTable(options),
            _builder(make, on),
            check,
        )
        for on in ("key", "value")
    )


def _inserted(key: str, what: str) -> Option:
    optional = "With `!` at its end it is required, with `?` or without it is optional."
    return Option(f"{key}.field", f"The field for {what}. {optional}")


TRANSFORMS: tuple[Plugin, ...] = (
    *_of_key_and_value(
        "Cast",
        fields.cast_field,
        Option("spec", "Fields and their new types, or a type for the whole value.", LIST, required=True),
        _DEFAULTS,
        check=checks.cast_spec,
    ),
    *_of_key_and_value(
        "ExtractField",
        fields.extract_field,
        Option("field", "The field that replaces all.", required=True),
        Option(
            "field.syntax.version",
            "V1: the name of a field; V2: a path with dots, and backticks around names that have dots.",
            _any_case("V1", "V2", to=str.upper),
            default="V1",
        ),
        _DEFAULTS,
        check=checks.field_path,
    ),
    *_of_key_and_value(
        "Flatten", fields.flatten, Option("delimiter", "Stands between the names of nested fields.", default=".")
    ),
    *_of_key_and_value(
        "HoistField", fields.hoist_field, Option("field", "The one field of the result.", required=True)
    ),
    *_of_key_and_value(
        "InsertField",
        fields.insert_field,
        _inserted("topic", "the topic"),
        _inserted("partition", "the partition"),
        _inserted("offset", "the offset, for sinks only"),
        _inserted("timestamp", "the timestamp"),
        _inserted("static", "a text that is always the same"),
        Option("static.value", "The text of `static.field`."),
        _DEFAULTS,
        check=checks.insertion,
    ),
    *_of_key_and_value(
        "MaskField",
        masks.mask_field,
        Option("fields", "The fields to mask.", LIST, required=True),
        Option("replacement", "Instead of 0 or an empty text, in fields of text or numbers."),
        _DEFAULTS,
        check=checks.all_of(checks.filled_list("fields"), checks.filled("replacement")),
    ),
    *_of_key_and_value(
        "ReplaceField",
        fields.replace_field,
        Option("exclude", "Fields to leave out, also if they are in `include`.", LIST, default=()),
        Option("include", "If given, the only fields to keep.", LIST, default=()),
        Option("renames", "New names, as old:new.", LIST, default=(), example="id:customer_id"),
        Option("blacklist", "The former name of `exclude`.", LIST),
        Option("whitelist", "The former name of `include`.", LIST),
        _DEFAULTS,
        check=checks.all_of(checks.unique_list("exclude"), checks.unique_list("include"), checks.renames),
    ),
    *_of_key_and_value(
        "SetSchemaMetadata",
        fields.set_schema_metadata,
        Option("schema.name", "The new name of the schema."),
        Option("schema.version", "The new version of the schema.", _INT32),
        _DEFAULTS,
        check=checks.schema_metadata,
    ),
    *_of_key_and_value(
        "TimestampConverter",
        times.timestamp_converter,
        Option("field", "The field with the time; if empty, the whole value is a time.", default=""),
        Option("target.type", "What the time becomes.", choice(*times.TARGETS), required=True),
        Option("format", "How times of text are written, as in Java's SimpleDateFormat.", default=""),
        Option(
            "unix.precision",
            "The unit of times that are numbers.",
            choice("seconds", "milliseconds", "microseconds", "nanoseconds"),
            default="milliseconds",
        ),
        _DEFAULTS,
        check=checks.timestamp_format,
    ),
    *_of_key_and_value(
        "HeaderFrom",
        routing.header_from,
        Option("fields", "The fields that become headers.", LIST, required=True),
        Option("headers", "The names of the headers, in the order of the fields.", LIST, required=True),
        Option(
            "operation",
            "Whether the fields stay in the record (copy) or not (move).",
            choice("move", "copy"),
            required=True,
        ),
        _DEFAULTS,
        check=checks.all_of(
            checks.filled_list("fields", can_repeat=True),
            checks.filled_list("headers", can_repeat=True),
            checks.as_many_headers,
        ),
    ),
    _transform(
        f"{_PACKAGE}.ValueToKey",
        fields.value_to_key,
        Option("fields", "The fields of the value that make the key.", LIST, required=True),
        _DEFAULTS,
        check=checks.filled_list("fields"),
    ),
    _transform(
        f"{_PACKAGE}.RegexRouter",
        routing.regex_router,
        Option("regex", "A Java pattern that the whole name of a topic has to match.", required=True),
        Option("replacement", "The new name; $1 is what the first group matched.", required=True),
        check=checks.java_regex("regex"),
    ),
    _transform(
        f"{_PACKAGE}.TimestampRouter",
        times.timestamp_router,
        Option("topic.format", "The new name, with ${topic} and ${timestamp}.", default="${topic}-${timestamp}"),
        Option("timestamp.format", "How the timestamp is written, as in SimpleDateFormat.", default="yyyyMMdd"),
        check=checks.java_date_pattern("timestamp.format"),
    ),
    _transform(
        f"{_PACKAGE}.InsertHeader",
        routing.insert_header,
        Option("header", "The name of the header.", required=True),
        Option("value.literal", "Its value in all records.", required=True),
    ),
    _transform(
        f"{_PACKAGE}.DropHeaders",
        routing.drop_headers,
        Option("headers", "The names of the headers to remove.", LIST, required=True),
        check=checks.filled_list("headers"),
    ),
    _transform(f"{_PACKAGE}.Filter", routing.drop_records),
    _transform(
        "io.debezium.transforms.ExtractNewRecordState",
        envelope.extract_new_record_state,
        Option(
            "delete.tombstone.handling.mode",
            "What deletes become, and whether tombstones after them stay. By default, a delete becomes a tombstone.",
            _any_case(*envelope.MODES),
        ),
        Option("drop.tombstones", "The former option for tombstones.", BOOLEAN),
        Option("delete.handling.mode", "The former option for deletes.", _any_case(*envelope.OLD_MODES)),
        Option("route.by.field", "The field of the row whose value is the topic.", default=""),
        Option("add.fields.prefix", "Before the names of added fields.", default="__"),
        Option(
            "add.fields", "Fields of the envelope to add, such as op, table, source.ts_ms:changed.", LIST, default=()
        ),
        Option("add.headers.prefix", "Before the names of added headers.", default="__"),
        Option("add.headers", "Fields of the envelope that become headers.", LIST, default=()),
        _DEFAULTS,
        check=checks.added_fields,
    ),
)

PREDICATES: tuple[Plugin, ...] = (
    Plugin(
        (f"{_PACKAGE}.predicates.TopicNameMatches",),
        PluginKind.PREDICATE,
        OptionTable.of(
            Option("pattern", "A Java pattern that the whole name of the topic matches.", TEXT, required=True)
        ),
        predicates.topic_name_matches,
        checks.all_of(checks.filled("pattern"), checks.java_regex("pattern")),
    ),
    Plugin(
        (f"{_PACKAGE}.predicates.HasHeaderKey",),
        PluginKind.PREDICATE,
        OptionTable.of(Option("name", "The name of a header that the record has.", TEXT, required=True)),
        predicates.has_header_key,
        checks.filled("name"),
    ),
    Plugin((f"{_PACKAGE}.predicates.RecordIsTombstone",), PluginKind.PREDICATE, build=predicates.record_is_tombstone),
)
