"""What the configuration of transforms and predicates may say, before any record is there."""

from __future__ import annotations

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.doors.connect.plugins import PluginKind
from moldau.pipelines.doors.connect.transforms import PREDICATES, TRANSFORMS, chain, problems
from moldau.pipelines.doors.connect.transforms.chaining import find
from moldau.pipelines.doors.connect.transforms.envelope import Added, Handling, handling
from moldau.pipelines.doors.connect.transforms.routing import literal_text

_APACHE = "org.apache.kafka.connect.transforms."
_OF_PARTS = [
    "Cast",
    "ExtractField",
    "Flatten",
    "HeaderFrom",
    "HoistField",
    "InsertField",
    "MaskField",
    "ReplaceField",
    "SetSchemaMetadata",
    "TimestampConverter",
]
_OF_RECORDS = ["DropHeaders", "Filter", "InsertHeader", "RegexRouter", "TimestampRouter", "ValueToKey"]


def _config(kind: str, **options: str) -> dict[str, str]:
    """A configuration with one transform `t`; in the names of options, `_` is a dot."""
    own = {f"transforms.t.{key.replace('_', '.')}": value for key, value in options.items()}
    return {"transforms": "t", "transforms.t.type": _APACHE + kind, **own}


def test_all_transforms_and_predicates_of_apache_kafka_are_there() -> None:
    of_parts = {f"{_APACHE}{name}${part}" for name in _OF_PARTS for part in ("Key", "Value")}
    assert {plugin.name for plugin in TRANSFORMS} == {
        *of_parts,
        *(_APACHE + name for name in _OF_RECORDS),
        "io.debezium.transforms.ExtractNewRecordState",
    }
    names = ("HasHeaderKey", "RecordIsTombstone", "TopicNameMatches")
    assert {plugin.name for plugin in PREDICATES} == {f"{_APACHE}predicates.{name}" for name in names}


_RIGHT = [
    _config("Cast$Value", spec="id: INT64 , name:string"),
    _config("Cast$Key", spec="float64"),
    _config("ExtractField$Key", field="id"),
    _config("ExtractField$Key", field="a.`b.c`", field_syntax_version="v2"),
    _config("Flatten$Value"),
    _config("InsertField$Value", static_field="origin!", static_value=""),
    _config("MaskField$Value", fields="a,b", replacement="x"),
    _config("ReplaceField$Value", exclude="", whitelist="a,b", renames="a:b"),
    _config("SetSchemaMetadata$Value", schema_version="-1"),
    _config("TimestampConverter$Value", target_type="string", format="yyyy-MM-dd'T'HH:mm:ss.SSSX"),
    _config("HeaderFrom$Value", fields="a,a", headers="x,y", operation="move"),
    _config("RegexRouter", regex=r"(?<a>\p{Alpha}+)\Q(\E.*+", replacement="$1"),
    _config("TimestampRouter"),
    _config("Filter", unknown_key="has no effect, as in Connect"),
    _config("Cast$Value", spec="${file:/etc/secrets:spec}"),
]


@pytest.mark.parametrize("config", _RIGHT, ids=lambda config: str(config["transforms.t.type"]).rpartition(".")[2])
def test_a_right_configuration_makes_a_step(config: dict[str, str]) -> None:
    assert list(problems(config)) == []


_WRONG = [
    (_config("Cast$Value"), "spec", 'Missing required configuration "spec" which has no default value.'),
    (_config("Cast$Value", spec=""), "spec", "Must specify at least one field to cast."),
    (_config("Cast$Value", spec="a:faketype"), "spec", "Invalid type found in casting spec: faketype"),
    (_config("Cast$Value", spec="a:array"), "spec", "does not support casting to ARRAY"),
    (_config("Cast$Value", spec="array"), "spec", "does not support casting to ARRAY"),
    (_config("Cast$Value", spec="a:bytes"), "spec", "does not support casting to BYTES"),
    (_config("Cast$Value", spec="a:int8:extra"), "spec", "Invalid cast: a:int8:extra"),
    (_config("Cast$Value", spec="a:int8,int32"), "spec", "may only specify a single cast"),
    (_config("Cast$Value", spec="int8", replace_null_with_default="no"), "replace.null.with.default", "true or false"),
    (_config("ExtractField$Key", field="a.`b", field_syntax_version="V2"), "field", "Incomplete backtick pair"),
    (_config("ExtractField$Key", field="a", field_syntax_version="V3"), "field.syntax.version", "V1 or V2"),
    (_config("HoistField$Key"), "field", "Missing required configuration"),
    (_config("InsertField$Value"), "static.field", "No field insertion configured"),
    (_config("InsertField$Value", static_field="a"), "static.value", "No value specified for static field: a"),
    (_config("MaskField$Value", fields=""), "fields", "Empty list"),
    (_config("MaskField$Value", fields="a,a"), "fields", "must not be duplicated"),
    (_config("MaskField$Value", fields="a", replacement=""), "replacement", "String must be non-empty"),
    (_config("ReplaceField$Value", renames="a"), "renames", "Invalid rename mapping: a"),
    (_config("ReplaceField$Value", renames="a:b:c"), "renames", "Invalid rename mapping: a:b:c"),
    (_config("ReplaceField$Value", include="a, a"), "include", "must not be duplicated"),
    (_config("SetSchemaMetadata$Key"), "schema.name", "Neither schema name nor version configured"),
    (_config("SetSchemaMetadata$Key", schema_version="one"), "schema.version", "whole number"),
    (_config("TimestampConverter$Value"), "target.type", "Missing required configuration"),
    (_config("TimestampConverter$Value", target_type="invalid"), "target.type", "string, unix, Date, Time"),
    (_config("TimestampConverter$Value", target_type="string"), "format", "requires format option"),
    (
        _config("TimestampConverter$Value", target_type="string", format="bad-format"),
        "format",
        "Illegal pattern character 'b'",
    ),
    (_config("TimestampConverter$Value", target_type="unix", unix_precision="hours"), "unix.precision", "seconds"),
    (_config("TimestampRouter", timestamp_format="yyyy'T"), "timestamp.format", "Unterminated quote"),
    (_config("HeaderFrom$Key", fields="a,b", headers="x", operation="copy"), "fields", "same number of elements"),
    (_config("HeaderFrom$Key", fields="", headers="", operation="copy"), "fields", "Empty list"),
    (_config("HeaderFrom$Key", fields="a", headers="b", operation="steal"), "operation", "move or copy"),
    (_config("ValueToKey", fields=""), "fields", "Empty list"),
    (_config("RegexRouter", regex="(", replacement=""), "regex", "Invalid regex"),
    (_config("RegexRouter", regex="[a", replacement=""), "regex", "Invalid regex"),
    (_config("RegexRouter", regex="a"), "replacement", "Missing required configuration"),
    (_config("InsertHeader", header="a"), "value.literal", "Missing required configuration"),
    (_config("DropHeaders", headers="a,a"), "headers", "must not be duplicated"),
]


@pytest.mark.parametrize(("config", "key", "message"), _WRONG, ids=lambda each: each if isinstance(each, str) else None)
def test_a_wrong_value_is_a_problem_of_its_key(config: dict[str, str], key: str, message: str) -> None:
    found = dict(problems(config))
    assert message in found[f"transforms.t.{key}"]
    with pytest.raises(ConfigError, match=rf"transforms\.t\.{key}: "):
        chain(config)


def test_predicates_are_checked_as_transforms_are() -> None:
    config = {
        "predicates": "p, q, r",
        "predicates.p.type": _APACHE + "predicates.TopicNameMatches",
        "predicates.p.pattern": "*",
        "predicates.q.type": _APACHE + "predicates.HasHeaderKey",
        "predicates.r.type": _APACHE + "predicates.HasHeaderKey",
        "predicates.r.name": "",
    }
    found = dict(problems(config))
    assert "Invalid regex" in found["predicates.p.pattern"]
    assert "Missing required configuration" in found["predicates.q.name"]
    assert "non-empty" in found["predicates.r.name"]


def test_an_unknown_class_is_named_with_the_nearest_known_one() -> None:
    found = dict(problems(_config("RegexRooter")))
    assert found["transforms.t.type"] == (
        f"{_APACHE}RegexRooter is not a transformation that is known here: did you mean '{_APACHE}RegexRouter'?"
    )
    assert (
        "did you mean 'Cast$Value'"
        in dict(problems({"transforms": "t", "transforms.t.type": "Cast$Valu"}))["transforms.t.type"]
    )


def test_a_predicate_is_no_transform() -> None:
    with pytest.raises(ConfigError, match="is not a transformation"):
        find(_APACHE + "predicates.RecordIsTombstone", PluginKind.TRANSFORMATION)


def test_a_class_may_be_named_without_its_package() -> None:
    assert find("Cast$Value", PluginKind.TRANSFORMATION).name == _APACHE + "Cast$Value"
    assert find("RecordIsTombstone").kind is PluginKind.PREDICATE


def test_a_transform_needs_a_type() -> None:
    found = dict(problems({"transforms": "a,b", "transforms.a.type": _APACHE + "Filter"}))
    assert [*found] == ["transforms.b.type"]


def test_an_alias_stands_once() -> None:
    assert "Duplicate" in dict(problems(_config("Filter") | {"transforms": "t,t"}))["transforms"]


def test_a_predicate_has_to_be_defined() -> None:
    config = _config("Filter") | {
        "predicates": "isOld",
        "predicates.isOld.type": _APACHE + "predicates.RecordIsTombstone",
    }
    assert dict(problems(config | {"transforms.t.predicate": "isOdl"})) == {
        "transforms.t.predicate": "The configuration has no predicate 'isOdl': did you mean 'isOld'?"
    }
    assert "to be negated" in dict(problems(config | {"transforms.t.negate": "true"}))["transforms.t.negate"]
    wrong = config | {"transforms.t.predicate": "isOld", "transforms.t.negate": "nope"}
    assert [*dict(problems(wrong))] == ["transforms.t.negate"]


def test_steps_come_in_the_order_of_the_configuration() -> None:
    config = {
        "transforms": "second, first",
        "transforms.first.type": _APACHE + "Filter",
        "transforms.second.type": _APACHE + "Flatten$Value",
    }
    asked: list[str] = []

    def recording(name: str, *kinds: PluginKind) -> object:
        asked.append(name)
        return find(name, *kinds)

    assert len(chain(config, recording)) == 2  # type: ignore[arg-type]
    assert asked[-2:] == [_APACHE + "Flatten$Value", _APACHE + "Filter"]
    assert chain({}) == ()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Handling("tombstone")),
        ({"delete.tombstone.handling.mode": "rewrite-with-tombstone"}, Handling("rewrite", keeps_tombstones=True)),
        ({"delete.tombstone.handling.mode": "drop", "drop.tombstones": False}, Handling("drop")),
        ({"drop.tombstones": False}, Handling("drop", keeps_tombstones=True)),
        ({"delete.handling.mode": "none"}, Handling("tombstone")),
        ({"delete.handling.mode": "rewrite", "drop.tombstones": False}, Handling("rewrite", keeps_tombstones=True)),
    ],
)
def test_old_and_new_options_for_deletes(values: dict[str, object], expected: Handling) -> None:
    assert handling(values) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("op", Added("", "op", "__op")),
        ("lsn", Added("source", "lsn", "__lsn")),
        ("id", Added("transaction", "id", "__id")),
        ("source.ts_ms", Added("source", "ts_ms", "__source_ts_ms")),
        ("source.table:origin", Added("source", "table", "__origin")),
    ],
)
def test_added_fields_are_found_where_debezium_looks_for_them(spec: str, expected: Added) -> None:
    assert Added.of(spec, "__") == expected


def test_dropping_fields_by_header_is_refused_with_what_to_do() -> None:
    config = {
        "transforms": "t",
        "transforms.t.type": "io.debezium.transforms.ExtractNewRecordState",
        "transforms.t.drop.fields.header.name": "dropped",
    }
    assert "ReplaceField" in dict(problems(config))["transforms.t.drop.fields.header.name"]


@pytest.mark.parametrize(
    ("literal", "written"),
    [("text", "text"), ("1", "1"), ("007", "7"), ("1.0", "1"), ("1.5", "1.5"), ("true", "true"), ("null", None)],
)
def test_literals_of_headers_are_written_as_connect_does(literal: str, written: str | None) -> None:
    assert literal_text(literal) == written
