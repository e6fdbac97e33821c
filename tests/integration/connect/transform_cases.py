"""Cases of transforms: a configuration, the columns of a record in SQL, and what becomes of it.

They restate those of Apache Kafka's own tests (connect/transforms) and Debezium's. All columns that a case does not
name have to come out as they went in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Any
_DEBEZIUM = "io.debezium.transforms.ExtractNewRecordState"


def smt(kind: str, *, predicate: str = "", **options: str) -> dict[str, str]:
    """One transform; in the names of options, `_` is a dot. A predicate is `[not] Name [option value]`."""
    config = {"transforms": "t", "transforms.t.type": kind}
    config |= {f"transforms.t.{key.replace('_', '.')}": value for key, value in options.items()}
    if predicate:
        name, *option = predicate.removeprefix("not ").split(" ")
        config |= {"predicates": "p", "transforms.t.predicate": "p", "predicates.p.type": name}
        config |= {f"predicates.p.{key}": value for key, value in zip(option[::2], option[1::2], strict=True)}
    return config | ({"transforms.t.negate": "true"} if predicate.startswith("not ") else {})


@dataclass(frozen=True)
class Case:
    name: str
    config: Mapping[str, str]
    given: Mapping[str, str] = field(default_factory=dict)  # column → SQL
    then: Mapping[str, Json] = field(default_factory=dict)  # column → JSON
    types: Mapping[str, str] = field(default_factory=dict)  # column → Spark's type
    schemaless: bool = False  # structs are JSON without a schema
    dropped: bool = False


def _cast(spec: str, value: str, then: Json, kind: str) -> Case:
    return Case(
        f"{value} cast to {spec}", smt("Cast$Value", spec=spec), {"value": value}, {"value": then}, {"value": kind}
    )


_NUMBERS = "named_struct('int8', 8Y, 'int16', 16S, 'int32', 32, 'int64', 64L, 'float32', 32f, 'float64', -64d)"
_OTHERS = "named_struct('boolean', true, 'string', '42', 'dec', 42BD, 'day', date'1970-01-02', 'bytes', X'FEDCBA98')"
_NULL_STRUCT = "CAST(NULL AS STRUCT<magic: INT, other: STRING>)"
_ONE_DAY = "timestamp_millis(86401234)"

CASTS = [
    _cast("int8", "42", 42, "tinyint"),
    _cast("int16", "42", 42, "smallint"),
    _cast("int32", "42", 42, "int"),
    _cast("int64", "42", 42, "bigint"),
    _cast("float32", "42", 42.0, "float"),
    _cast("float64", "42", 42.0, "double"),
    _cast("boolean", "42", True, "boolean"),
    _cast("boolean", "0", False, "boolean"),
    _cast("boolean", "0.5D", False, "boolean"),
    _cast("string", "42", "42", "string"),
    _cast("string", "42BD", "42", "string"),
    _cast("string", "1.5D", "1.5", "string"),
    _cast("string", "true", "true", "string"),
    _cast("string", "timestamp_millis(86400001)", "1970-01-02T00:00:00.001Z", "string"),
    _cast("string", "timestamp_millis(86400000)", "1970-01-02", "string"),
    _cast("string", "timestamp_millis(3600000)", "01:00:00.000Z", "string"),
    _cast("string", "date'1970-01-02'", "1970-01-02", "string"),
    _cast("int32", "42.125F", 42, "int"),
    _cast("int32", "2147483648BD", -2147483648, "int"),
    _cast("int8", "300", 44, "tinyint"),
    _cast("int8", "1e10D", -1, "tinyint"),
    _cast("int32", "1e10D", 2147483647, "int"),
    _cast("int64", "CAST('NaN' AS DOUBLE)", 0, "bigint"),
    _cast("int16", "'-7'", -7, "smallint"),
    _cast("float64", "'1e3'", 1000.0, "double"),
    _cast("boolean", "'TRUE'", True, "boolean"),
    _cast("boolean", "'yes'", False, "boolean"),
    _cast("int8", "true", 1, "tinyint"),
    _cast("int32", "date'1970-01-02'", 1, "int"),
    _cast("int64", "timestamp_millis(0)", 0, "bigint"),
    _cast("foo:int64", _NULL_STRUCT, None, "struct<magic:int,other:string>"),
    Case("a key is cast", smt("Cast$Key", spec="int8"), {"key": "42"}, {"key": 42}, {"key": "tinyint"}),
    Case(
        "fields of numbers are cast",
        smt(
            "Cast$Value", spec="int8:int16,int16:int32,int32:int64,int64:boolean,float32:float64,float64:boolean,x:int8"
        ),
        {"value": _NUMBERS},
        {"value": {"int8": 8, "int16": 16, "int32": 32, "int64": True, "float32": 32.0, "float64": True}},
        {"value": "struct<int8:smallint,int16:int,int32:bigint,int64:boolean,float32:double,float64:boolean>"},
    ),
    Case(
        "fields of other types are cast, and only those in the spec",
        smt("Cast$Value", spec="boolean:int8,string:int32,dec:string,bytes:string"),
        {"value": _OTHERS},
        {"value": {"boolean": 1, "string": 42, "dec": "42", "day": "1970-01-02", "bytes": "/ty6mA=="}},
        {"value": "struct<boolean:tinyint,string:int,dec:string,day:date,bytes:string>"},
    ),
    Case(
        "values in a map keep the map's type",
        smt("Cast$Value", spec="a:int32,missing:int32"),
        {"value": "map('a', '42', 'b', 'x')"},
        {"value": {"a": "42", "b": "x", "missing": None}},
    ),
]

_V2 = {"field_syntax_version": "V2"}
EXTRACTS = [
    Case("a field of a map", smt("ExtractField$Key", field="magic"), {"key": "map('magic', 42)"}, {"key": 42}),
    Case(
        "a field of a struct", smt("ExtractField$Key", field="magic"), {"key": "named_struct('magic', 42)"}, {"key": 42}
    ),
    Case(
        "a nested field",
        smt("ExtractField$Value", field="magic.foo", **_V2),
        {"value": "named_struct('magic', named_struct('foo', 42))"},
        {"value": 42},
        {"value": "int"},
    ),
    Case(
        "a field with a dot is no path in V1",
        smt("ExtractField$Value", field="magic.foo"),
        {"value": "named_struct('magic.foo', 42)"},
        {"value": 42},
    ),
    Case(
        "a nested field of maps",
        smt("ExtractField$Value", field="magic.foo", **_V2),
        {"value": "map('magic', map('foo', 42))"},
        {"value": 42},
    ),
    Case("a null passes", smt("ExtractField$Value", field="magic"), {"value": _NULL_STRUCT}, {"value": None}),
    Case("a null without a type passes", smt("ExtractField$Value", field="magic"), {"value": "NULL"}, {"value": None}),
    Case(
        "a map without the field", smt("ExtractField$Value", field="no"), {"value": "map('magic', 42)"}, {"value": None}
    ),
    Case(
        "a value without a schema and the field",
        smt("ExtractField$Value", field="no"),
        {"value": "named_struct('magic', 42)"},
        {"value": None},
        schemaless=True,
    ),
]

FLATTENS = [
    Case(
        "nested structs",
        smt("Flatten$Value"),
        {"value": "named_struct('A', named_struct('B', named_struct('int8', 8Y, 'string', 'stringy')), 'c', 1)"},
        {"value": {"A.B.int8": 8, "A.B.string": "stringy", "c": 1}},
        {"value": "struct<A.B.int8:tinyint,A.B.string:string,c:int>"},
    ),
    Case(
        "nested maps with a delimiter",
        smt("Flatten$Value", delimiter="#"),
        {"value": "map('A', map('B', map('x', 1)))"},
        {"value": {"A#B#x": 1}},
    ),
    Case(
        "a struct that is null has fields that are null",
        smt("Flatten$Value"),
        {"value": "named_struct('B', CAST(NULL AS STRUCT<opt: INT>))"},
        {"value": {"B.opt": None}},
    ),
    Case("a null passes", smt("Flatten$Value"), {"value": _NULL_STRUCT}, {"value": None}),
    Case(
        "arrays stay as they are",
        smt("Flatten$Value"),
        {"value": "named_struct('foo', array(named_struct('baz', named_struct('lfg', 'lfg'))))"},
        {"value": {"foo": [{"baz": {"lfg": "lfg"}}]}},
    ),
    Case("a key", smt("Flatten$Key"), {"key": "map('A', map('B', 12))"}, {"key": {"A.B": 12}}),
]

HOISTS = [
    Case(
        "a key",
        smt("HoistField$Key", field="magic"),
        {"key": "42"},
        {"key": {"magic": 42}},
        {"key": "struct<magic:int>"},
    ),
    Case("a null", smt("HoistField$Value", field="magic"), {"value": "NULL"}, {"value": {"magic": None}}),
    Case(
        "a struct",
        smt("HoistField$Value", field="line"),
        {"value": "named_struct('a', 1)"},
        {"value": {"line": {"a": 1}}},
    ),
]

_INSERTS = {
    "topic_field": "topic_field!",
    "partition_field": "partition_field",
    "timestamp_field": "timestamp_field?",
    "static_field": "instance_id",
    "static_value": "my-instance-id",
}
INSERTS = [
    Case(
        "attributes of the record",
        smt("InsertField$Value", **_INSERTS),
        {"value": "named_struct('magic', 42L)", "timestamp": "timestamp_millis(100)"},
        {
            "value": {
                "magic": 42,
                "topic_field": "topic",
                "partition_field": 0,
                "timestamp_field": "1970-01-01T00:00:00.100Z",
                "instance_id": "my-instance-id",
            }
        },
        {
            "value": "struct<magic:bigint,topic_field:string,partition_field:int,timestamp_field:timestamp,"
            "instance_id:string>"
        },
    ),
    Case(
        "without a schema, the timestamp is a number",
        smt("InsertField$Value", timestamp_field="at"),
        {"value": "named_struct('magic', 42L)", "timestamp": "timestamp_millis(123456789)"},
        {"value": {"magic": 42, "at": 123456789}},
        schemaless=True,
    ),
    Case(
        "a map",
        smt("InsertField$Value", topic_field="t", static_field="s", static_value="x"),
        {"value": "map('magic', '42')"},
        {"value": {"magic": "42", "t": "topic", "s": "x"}},
    ),
    Case(
        "without partition and timestamp",
        smt("InsertField$Value", **_INSERTS),
        {
            "value": "named_struct('magic', 42L)",
            "partition": "CAST(NULL AS INT)",
            "timestamp": "CAST(NULL AS TIMESTAMP)",
        },
        {
            "value": {
                "magic": 42,
                "topic_field": "topic",
                "partition_field": None,
                "timestamp_field": None,
                "instance_id": "my-instance-id",
            }
        },
    ),
    Case("a null passes", smt("InsertField$Value", topic_field="t"), {"value": "NULL"}),
    Case("a null struct passes", smt("InsertField$Value", topic_field="t"), {"value": _NULL_STRUCT}, {"value": None}),
    Case(
        "a key",
        smt("InsertField$Key", topic_field="t!"),
        {"key": "named_struct('magic', 42L)", "value": "NULL"},
        {"key": {"magic": 42, "t": "topic"}},
    ),
    Case(
        "the offset of a sink's record",
        smt("InsertField$Value", offset_field="o"),
        {"value": "named_struct('magic', 1)", "offset": "7L"},
        {"value": {"magic": 1, "o": 7}},
    ),
]

_ALL_TYPES = (
    "named_struct('magic', 42, 'bool', true, 'byte', 42Y, 'short', 42S, 'int', 42, 'long', 42L, 'float', 42f, "
    "'double', 42d, 'string', 'hmm', 'date', date'2020-01-01', 'timestamp', timestamp_millis(1234567), "
    "'decimal', 42BD, 'array', array(1, 2), 'map', map('what', 'what'), 'none', CAST(NULL AS STRING))"
)
_MASKED = "bool,byte,short,int,long,float,double,string,date,timestamp,decimal,array,map,none"
_REPLACED = "byte,short,int,long,float,double,string,decimal"
MASKS = [
    Case(
        "all types",
        smt("MaskField$Value", fields=_MASKED),
        {"value": _ALL_TYPES},
        {
            "value": {
                "magic": 42,
                "bool": False,
                "byte": 0,
                "short": 0,
                "int": 0,
                "long": 0,
                "float": 0.0,
                "double": 0.0,
                "string": "",
                "date": "1970-01-01",
                "timestamp": "1970-01-01T00:00:00.000Z",
                "decimal": 0,
                "array": [],
                "map": {},
                "none": None,
            }
        },
    ),
    Case(
        "a replacement",
        smt("MaskField$Value", fields=_REPLACED, replacement="123"),
        {
            "value": "named_struct('byte', 1Y, 'short', 1S, 'int', 1, 'long', 1L, 'float', 1f, 'double', 1d, "
            "'string', 'a', 'decimal', 100BD, 'other', 1)"
        },
        {
            "value": {
                "byte": 123,
                "short": 123,
                "int": 123,
                "long": 123,
                "float": 123.0,
                "double": 123.0,
                "string": "123",
                "decimal": 123,
                "other": 1,
            }
        },
    ),
    Case(
        "a map, whose missing fields are null then",
        smt("MaskField$Value", fields="a,c"),
        {"value": "map('a', '1', 'b', '2')"},
        {"value": {"b": "2", "a": "", "c": None}},
    ),
    Case(
        "only records that are no tombstones",
        smt("MaskField$Value", fields="magic", predicate="not RecordIsTombstone"),
        {"value": _NULL_STRUCT},
        {"value": None},
    ),
]

_FOUR = "named_struct('dont', 'whatever', 'abc', 42, 'foo', true, 'etc', 'etc')"
_FOUR_MAP = "map('dont', 'whatever', 'abc', '42', 'foo', 'true', 'etc', 'etc')"
REPLACES = [
    Case(
        "include and renames",
        smt("ReplaceField$Value", include="abc,foo", renames="abc:xyz,foo:bar"),
        {"value": _FOUR},
        {"value": {"xyz": 42, "bar": True}},
        {"value": "struct<xyz:int,bar:boolean>"},
    ),
    Case(
        "exclude and renames",
        smt("ReplaceField$Value", exclude="dont", renames="abc:xyz,foo:bar"),
        {"value": _FOUR},
        {"value": {"xyz": 42, "bar": True, "etc": "etc"}},
    ),
    Case(
        "a map",
        smt("ReplaceField$Value", exclude="dont", renames="abc:xyz,foo:bar"),
        {"value": _FOUR_MAP},
        {"value": {"xyz": "42", "bar": "true", "etc": "etc"}},
    ),
    Case(
        "include of a map, exclude wins",
        smt("ReplaceField$Value", include="abc,foo", exclude="foo"),
        {"value": _FOUR_MAP},
        {"value": {"abc": "42"}},
    ),
    Case(
        "the old names",
        smt("ReplaceField$Key", whitelist="abc,foo", blacklist="foo"),
        {"key": _FOUR},
        {"key": {"abc": 42}},
    ),
    Case("a tombstone", smt("ReplaceField$Value", include="a", renames="a:b"), {"value": "NULL"}),
    Case("a null struct", smt("ReplaceField$Value", exclude="other"), {"value": _NULL_STRUCT}, {"value": None}),
]


def _time(name: str, value: str, then: Json, kind: str = "", **options: str) -> Case:
    config = smt("TimestampConverter$Value", **options)
    return Case(name, config, {"value": value}, {"value": then}, {"value": kind} if kind else {})


_FORMAT = "yyyy MM dd HH mm ss SSS z"
_TEXT = "'1970 01 02 00 00 01 234 UTC'"
_STAMP = "1970-01-02T00:00:01.234Z"
TIMES = [
    _time("timestamp to timestamp", _ONE_DAY, _STAMP, "timestamp", target_type="Timestamp"),
    _time("timestamp to date", _ONE_DAY, "1970-01-02", "date", target_type="Date"),
    _time("timestamp to time", _ONE_DAY, 1234, "int", target_type="Time"),
    _time("timestamp to unix", _ONE_DAY, 86401234, "bigint", target_type="unix"),
    _time("timestamp to seconds", _ONE_DAY, 86401, target_type="unix", unix_precision="seconds"),
    _time("timestamp to micros", _ONE_DAY, 86401234000, target_type="unix", unix_precision="microseconds"),
    _time("timestamp to nanos", _ONE_DAY, 86401234000000, target_type="unix", unix_precision="nanoseconds"),
    _time("timestamp to text", _ONE_DAY, _TEXT.strip("'"), "string", target_type="string", format=_FORMAT),
    _time("a date", "date'1970-01-02'", "1970-01-02T00:00:00.000Z", target_type="Timestamp"),
    _time("unix", "86401234L", _STAMP, "timestamp", target_type="Timestamp"),
    _time("unix seconds", "86401L", "1970-01-02T00:00:01.000Z", target_type="Timestamp", unix_precision="seconds"),
    _time("unix micros", "86401234123L", _STAMP, target_type="Timestamp", unix_precision="microseconds"),
    _time("unix nanos", "86401234123456L", _STAMP, target_type="Timestamp", unix_precision="nanoseconds"),
    _time("text to timestamp", _TEXT, _STAMP, "timestamp", target_type="Timestamp", format=_FORMAT),
    _time("text to date before 1970", "'1969-7-20'", "1969-07-20", target_type="Date", format="yyyy-MM-dd"),
    _time("text without separators", "'20240229'", "2024-02-29", target_type="Date", format="yyyyMMdd"),
    _time(
        "text with an offset, and more than the pattern",
        "'2024-02-29T01:30:00+02:00 and more'",
        "2024-02-28T23:30:00.000Z",
        target_type="Timestamp",
        format="yyyy-MM-dd'T'HH:mm:ssXXX",
    ),
    _time(
        "text with a month and half days",
        "'Thu, 29 Feb 24 12:05 AM'",
        "2024-02-29T00:05:00.000Z",
        target_type="Timestamp",
        format="EEE, dd MMM yy hh:mm a",
    ),
    _time(
        "letters that Spark has not, or has otherwise",
        "timestamp_millis(1735560005006)",  # Monday, 2024-12-30T12:00:05.006Z
        "2025 Mon Monday Dec 12 PM 000006 6 365 1 +0000 Z it's",
        target_type="string",
        format="YYYY EEE EEEE MMM hh a SSSSSS S D u Z X 'it''s'",
    ),
    _time("null text", "CAST(NULL AS STRING)", None, "timestamp", target_type="Timestamp", format=_FORMAT),
    _time("null unix to text", "CAST(NULL AS BIGINT)", None, "string", target_type="string", format=_FORMAT),
    _time("null date to unix", "CAST(NULL AS DATE)", None, "bigint", target_type="unix"),
    _time("null struct", "CAST(NULL AS STRUCT<ts: BIGINT>)", None, "struct<ts:date>", target_type="Date", field="ts"),
    _time(
        "a field",
        "named_struct('ts', 86401234L, 'other', 'test')",
        {"ts": _STAMP, "other": "test"},
        "struct<ts:timestamp,other:string>",
        target_type="Timestamp",
        field="ts",
    ),
    _time(
        "a null field",
        "named_struct('ts', CAST(NULL AS BIGINT), 'other', 'test')",
        {"ts": None, "other": "test"},
        "struct<ts:timestamp,other:string>",
        target_type="Timestamp",
        field="ts",
    ),
    _time("a map", f"map('ts', {_ONE_DAY})", {"ts": "1970-01-02T00:00:00.000Z"}, target_type="Date", field="ts"),
]


def _headers(**values: Json) -> list[Json]:
    return [{"key": key, "value": value} for key, value in values.items()]


_OLD = "array(named_struct('key', 'old', 'value', CAST('x' AS BINARY)))"
_TWO = "named_struct('field1', 'v1', 'field2', 'v2')"


def _header_from(name: str, then: Json, added: list[Json], /, **options: str) -> Case:
    return Case(
        name,
        smt("HeaderFrom$Value", **options),
        {"value": _TWO, "headers": _OLD},
        {"value": then, "headers": [*_headers(old="x"), *added]},
    )


_BOTH = {"field1": "v1", "field2": "v2"}
HEADERS = [
    _header_from("copy", _BOTH, _headers(new="v1"), fields="field1", headers="new", operation="copy"),
    _header_from("move", {"field2": "v2"}, _headers(new="v1"), fields="field1", headers="new", operation="move"),
    _header_from("a name that is there", _BOTH, _headers(old="v1"), fields="field1", headers="old", operation="copy"),
    _header_from(
        "two of one field",
        {"field2": "v2"},
        _headers(a="v1", b="v1"),
        fields="field1,field1",
        headers="a,b",
        operation="move",
    ),
    _header_from(
        "two fields to one header",
        {},
        [*_headers(a="v1"), *_headers(a="v2")],
        fields="field1,field2",
        headers="a,a",
        operation="move",
    ),
    Case(
        "values that are no text",
        smt("HeaderFrom$Key", fields="n,s,none", headers="n,s,none", operation="copy"),
        {"key": "named_struct('n', 1.5D, 's', named_struct('foo', 'bar'), 'none', CAST(NULL AS INT))"},
        {"headers": _headers(n="1.5", s='{"foo":"bar"}', none=None)},
    ),
    Case(
        "a map",
        smt("HeaderFrom$Value", fields="a", headers="h", operation="move"),
        {"value": "map('a', 1, 'b', 2)"},
        {"value": {"b": 2}, "headers": _headers(h="1")},
    ),
    Case(
        "a header is inserted",
        smt("InsertHeader", header="new", value_literal="inserted-value"),
        {"headers": _OLD},
        {"headers": _headers(old="x", new="inserted-value")},
    ),
    Case(
        "a header is inserted again",
        smt("InsertHeader", header="old", value_literal="1"),
        {"headers": _OLD},
        {"headers": [*_headers(old="x"), *_headers(old="1")]},
    ),
    Case(
        "a header is inserted where there are none",
        smt("InsertHeader", header="a", value_literal="null"),
        {"headers": "CAST(NULL AS ARRAY<STRUCT<key: STRING, value: BINARY>>)"},
        {"headers": _headers(a=None)},
    ),
    Case("headers are dropped", smt("DropHeaders", headers="old,other"), {"headers": _OLD}, {"headers": []}),
    Case("other headers stay", smt("DropHeaders", headers="other"), {"headers": _OLD}, {"headers": _headers(old="x")}),
]


def _route(regex: str, replacement: str, topic: str, then: str) -> Case:
    config = smt("RegexRouter", regex=regex, replacement=replacement)
    return Case(f"{regex} on {topic}", config, {"topic": f"r'{topic}'"}, {"topic": then})


ROUTES = [
    _route("foo", "bar", "orig", "orig"),
    _route("(.*)", "$1", "orig", "orig"),
    _route("(.*)", "prefix-$1", "orig", "prefix-orig"),
    _route("(.*)", "$1-suffix", "orig", "orig-suffix"),
    _route(r"(.*)-(\d\d\d\d\d\d\d\d)", "$1", "index-20160117", "index"),
    _route("orig", "new", "my-orig", "my-orig"),
    _route("a|ab", "X", "ab", "Xb"),
    _route(r"(?i)(?<kind>[a-z]+)\.(\w+)", "${kind}_$2", "Sales.Orders", "Sales_Orders"),
    Case(
        "the timestamp in the topic's name",
        smt("TimestampRouter"),
        {"timestamp": "timestamp_millis(1483425001864)"},
        {"topic": "topic-20170103"},
    ),
    Case(
        "formats of topic and timestamp",
        smt("TimestampRouter", topic_format="x-${timestamp}-${topic}-${topic}", timestamp_format="yyyy.'w'ww"),
        {"timestamp": "timestamp_millis(1483425001864)", "topic": "'a$1'"},
        {"topic": "x-2017.w01-a$1-a$1"},
    ),
    Case("the filter drops all", smt("Filter"), dropped=True),
    Case("the filter drops tombstones", smt("Filter", predicate="RecordIsTombstone"), {"value": "NULL"}, dropped=True),
    Case("the filter keeps others", smt("Filter", predicate="RecordIsTombstone")),
    Case(
        "a topic that matches",
        smt("Filter", predicate="TopicNameMatches pattern my-.*"),
        {"topic": "'my-topic'"},
        dropped=True,
    ),
    Case(
        "a topic that matches in part", smt("Filter", predicate="TopicNameMatches pattern my-"), {"topic": "'my-topic'"}
    ),
    Case("a header that is there", smt("Filter", predicate="HasHeaderKey name old"), {"headers": _OLD}, dropped=True),
    Case("a header that is not there", smt("Filter", predicate="HasHeaderKey name foo"), {"headers": _OLD}),
    Case(
        "no header, negated",
        smt("Filter", predicate="not HasHeaderKey name foo"),
        {"headers": _OLD},
        dropped=True,
    ),
]

KEYS = [
    Case(
        "of a struct",
        smt("ValueToKey", fields="a,b"),
        {"value": "named_struct('a', 1, 'b', 2, 'c', 3)"},
        {"key": {"a": 1, "b": 2}},
        {"key": "struct<a:int,b:int>"},
    ),
    Case("of a map", smt("ValueToKey", fields="a,x"), {"value": "map('a', 1, 'c', 3)"}, {"key": {"a": 1, "x": None}}),
    Case(
        "of a value without a schema",
        smt("ValueToKey", fields="a,x"),
        {"value": "named_struct('a', 1)"},
        {"key": {"a": 1, "x": None}},
        schemaless=True,
    ),
    Case("the schema's name and version", smt("SetSchemaMetadata$Value", schema_name="foo", schema_version="42")),
    Case("no schema, no value", smt("SetSchemaMetadata$Value", schema_name="foo"), {"value": "NULL"}),
]

_ROW = "named_struct('id', {id}, 'name', '{name}')"
_SOURCE = "named_struct('table', 'users', 'lsn', 1234, 'ts_ms', 5L)"
_NO_ROW = "CAST(NULL AS STRUCT<id: INT, name: STRING>)"


def _envelope(op: str, before: str = _NO_ROW, after: str = _NO_ROW) -> str:
    return (
        f"named_struct('before', {before}, 'after', {after}, 'source', {_SOURCE}, 'op', '{op}', 'ts_ms', 9L, "
        "'transaction', CAST(NULL AS STRUCT<id: STRING>))"
    )


_CREATE = _envelope("c", after=_ROW.format(id=1, name="new"))
_UPDATE = _envelope("u", _ROW.format(id=1, name="old"), _ROW.format(id=1, name="new"))
_DELETE = _envelope("d", _ROW.format(id=1, name="old"))
_TOMBSTONE = f"IF(true, NULL, {_CREATE})"


def _unwrap(name: str, value: str, then: Json = None, *, dropped: bool = False, mode: str = "", **options: str) -> Case:
    if mode:
        options["delete_tombstone_handling_mode"] = mode
    return Case(name, smt(_DEBEZIUM, **options), {"value": value}, {"value": then}, dropped=dropped)


_NEW, _OLD_ROW = {"id": 1, "name": "new"}, {"id": 1, "name": "old"}
ENVELOPES = [
    _unwrap("create", _CREATE, _NEW),
    _unwrap("update", _UPDATE, _NEW),
    _unwrap("delete", _DELETE, None),
    _unwrap("tombstone", _TOMBSTONE, dropped=True),
    _unwrap("truncate", _envelope("t"), dropped=True),
    _unwrap("delete, dropped", _DELETE, dropped=True, mode="drop"),
    _unwrap("delete to tombstone", _DELETE, None, mode="delete-to-tombstone"),
    _unwrap("create, rewritten", _CREATE, {**_NEW, "__deleted": "false"}, mode="rewrite"),
    _unwrap("delete, rewritten", _DELETE, {**_OLD_ROW, "__deleted": "true"}, mode="rewrite"),
    _unwrap("tombstone, rewritten", _TOMBSTONE, dropped=True, mode="rewrite"),
    _unwrap("tombstone, kept", _TOMBSTONE, None, mode="rewrite-with-tombstone"),
    _unwrap("delete, old option", _DELETE, dropped=True, delete_handling_mode="drop"),
    _unwrap("tombstone, old option", _TOMBSTONE, None, drop_tombstones="false"),
    _unwrap(
        "added fields",
        _UPDATE,
        {**_NEW, "__op": "u", "__lsn": 1234, "__source_ts_ms": 5, "__origin": "users"},
        add_fields="op,lsn,source.ts_ms,table:origin,nothing",
    ),
    _unwrap(
        "added fields of a delete",
        _DELETE,
        {**_OLD_ROW, "__deleted": "true", "op": "d"},
        mode="rewrite",
        add_fields="op",
        add_fields_prefix="",
    ),
    Case(
        "added headers",
        smt(_DEBEZIUM, add_headers="op,table"),
        {"value": _CREATE},
        {"value": _NEW, "headers": _headers(__op="c", __table="users")},
    ),
    Case(
        "the header of a tombstone",
        smt(_DEBEZIUM, add_headers="op,table", drop_tombstones="false"),
        {"value": _TOMBSTONE},
        {"headers": _headers(__op="d")},
    ),
    Case(
        "routed by a field",
        smt(_DEBEZIUM, route_by_field="name"),
        {"value": _DELETE},
        {"value": None, "topic": "old"},
    ),
    _unwrap("no envelope", "named_struct('id', 1)", {"id": 1}),
]

GROUPS = {
    "Cast": CASTS,
    "ExtractField": EXTRACTS,
    "Flatten": FLATTENS,
    "HoistField": HOISTS,
    "InsertField": INSERTS,
    "MaskField": MASKS,
    "ReplaceField": REPLACES,
    "TimestampConverter": TIMES,
    "headers": HEADERS,
    "routing": ROUTES,
    "keys": KEYS,
    "ExtractNewRecordState": ENVELOPES,
}

FAILURES = [
    (smt("Cast$Value", spec="int8"), "'300'", "Value (300) was out of range for requested data type"),
    (smt("Cast$Value", spec="int8"), "'1.0'", "Value (1.0) was out of range"),
    (smt("Cast$Value", spec="int8"), "array('foo')", "does not support casting from ARRAY"),
    (smt("Cast$Value", spec="a:int8"), "42", "Only Struct objects supported for [cast types], found: integer"),
    (smt("ExtractField$Value", field="no"), "named_struct('a', 1)", "Unknown field: no"),
    (smt("Flatten$Value"), "42", "Only Struct objects supported for [flattening], found: integer"),
    (smt("InsertField$Value", static_field="a", static_value="b"), "named_struct('a', 1)", "field name duplication a"),
    (smt("InsertField$Value", offset_field="o"), "named_struct('a', 1)", "Only SinkRecord supported"),
    (
        smt("MaskField$Value", fields="magic"),
        _NULL_STRUCT,
        "Only Struct objects supported for [mask fields], found: null",
    ),
    (smt("MaskField$Value", fields="a", replacement="x"), "named_struct('a', 1)", "Unable to convert x"),
    (smt("MaskField$Value", fields="a", replacement="x"), "named_struct('a', true)", "Cannot mask value of type"),
    (smt("MaskField$Value", fields="a"), "named_struct('a', named_struct('b', 1))", "Cannot mask value of type"),
    (smt("ReplaceField$Value", renames="a:b"), "named_struct('a', 1, 'b', 2)", "field name duplication b"),
    (smt("ValueToKey", fields="b"), "named_struct('a', 1)", "Field does not exist: b"),
    (smt("ValueToKey", fields="magic"), _NULL_STRUCT, "found: null"),
    (smt("SetSchemaMetadata$Value", schema_name="a"), "map('a', 1)", "Schema required for [updating schema metadata]"),
    (
        smt("TimestampConverter$Value", target_type="Date", format="yyyy-MM-dd"),
        "'2024/01/01'",
        "Could not parse timestamp: value (2024/01/01) does not match pattern (yyyy-MM-dd)",
    ),
    (smt("TimestampConverter$Value", target_type="Date"), "42", "does not correspond to a known timestamp type format"),
]
