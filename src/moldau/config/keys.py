"""One configuration key: its Kafka name, kind, default, doc line and validation, kept together.

A scope (broker, topic) is a frozen dataclass whose fields are declared with `key(...)`; the class body is the
table of its keys. The attribute is the key's name with dots and dashes turned into underscores, always.
What a key *means* is not known here.

Every command of the project imports this at its start, so import time counts: `dataclass` would compile an
`__init__` of a hundred parameters in 5 ms, the one of `Configuration` needs none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, dataclass_transform

from moldau.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

Value = bool | int | float | str | tuple[str, ...] | None


class Kind(IntEnum):
    """Kafka's value types, numbered as DescribeConfigs sends them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_BITS = {Kind.SHORT: 16, Kind.INT: 32, Kind.LONG: 64}


class Validator(Protocol):
    def problem(self, value: Any) -> str | None:
        """Why `value` is not allowed, or None when it is."""

    def allowed(self) -> str:
        """The allowed values, for the reference page."""


class AtLeast(NamedTuple):
    minimum: int

    def problem(self, value: Any) -> str | None:
        return None if value >= self.minimum else f"Value must be at least {self.minimum}"

    def allowed(self) -> str:
        return f"≥ {self.minimum}"


class Between(NamedTuple):
    minimum: int
    maximum: int
    also: int | None = None  # a value outside of the range with a meaning of its own (gzip: -1, its default)

    def problem(self, value: Any) -> str | None:
        if self.minimum <= value <= self.maximum or (self.also is not None and value == self.also):
            return None
        if self.also is not None:
            return f"Value must be between {self.minimum} and {self.maximum} or equal to {self.also}"
        bound = f"at least {self.minimum}" if value < self.minimum else f"no more than {self.maximum}"
        return f"Value must be {bound}"

    def allowed(self) -> str:
        return f"{self.minimum} … {self.maximum}" + ("" if self.also is None else f", or {self.also}")


class OneOf(NamedTuple):
    values: tuple[str, ...]
    ignore_case: bool = False

    def problem(self, value: Any) -> str | None:
        if (value.lower() if self.ignore_case else value) in self.values:
            return None
        how = " (case insensitive)" if self.ignore_case else ""
        return f"String must be one of{how}: " + ", ".join(self.values)

    def allowed(self) -> str:
        return ", ".join(self.values)


class ListOf(NamedTuple):
    """A list without duplicates or empty elements; without `values`, any element goes."""

    values: tuple[str, ...] = ()
    empty_ok: bool = True

    def problem(self, value: Any) -> str | None:
        if not value and not self.empty_ok:
            return "List must not be empty"
        if len(set(value)) != len(value):
            return "List must not contain duplicates"
        for element in value:
            if not element:
                return "List must not contain empty values"
            if self.values and element not in self.values:
                return "String must be one of: " + ", ".join(self.values)
        return None

    def allowed(self) -> str:
        text = "list of " + ", ".join(self.values) if self.values else "list without duplicates"
        return text if self.empty_ok else text + ", not empty"


class ReplicaList(NamedTuple):
    """`*`, or a list of partition:broker."""

    def problem(self, value: Any) -> str | None:
        if value == ("*",) or all(re.fullmatch("[0-9]+:[0-9]+", element) for element in value):
            return None
        return "Value must be the literal '*' or a list of replicas, as partition:broker,partition:broker"

    def allowed(self) -> str:
        return "`*`, or a list of partition:broker"


class Key(NamedTuple):
    name: str
    kind: Kind
    default: Value
    doc: str
    validator: Validator | None = None
    dynamic: bool = False  # may be changed on a running broker with IncrementalAlterConfigs
    kafka_default: str | None = None  # Apache Kafka's default, where ours differs
    internal: bool = False  # accepted, but neither described nor documented (as Kafka's own internal keys)
    later: bool = False  # checked, shown and kept, but not used by the broker yet

    @property
    def attribute(self) -> str:
        return attribute_of(self.name)

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Value:
        """The typed value of `text`; ConfigError names key, value and what is allowed."""
        value = self._parse(text)
        problem = self.validator.problem(value) if self.validator is not None else None
        if problem is not None:
            raise ConfigError(self._invalid(text, problem))
        return value

    def _parse(self, text: str) -> Value:
        text = text.strip()
        kind = self.kind
        if kind in _BITS:
            return self._parse_integer(text)
        if kind is Kind.BOOLEAN:
            lowered = text.lower()
            if lowered not in ("true", "false"):
                raise ConfigError(self._invalid(text, "Expected value to be either true or false"))
            return lowered == "true"
        if kind is Kind.DOUBLE:
            try:
                return float(text)
            except ValueError:
                raise ConfigError(self._invalid(text, "Not a number of type DOUBLE")) from None
        if kind is Kind.LIST:
            return tuple(part.strip() for part in text.split(",")) if text else ()
        return text

    def _parse_integer(self, text: str) -> int:
        digits = text[1:] if text[:1] in ("-", "+") else text
        limit = 1 << (_BITS[self.kind] - 1)
        # Python's int() also takes "1_000" and " 1 "; Java's parser, and so every Kafka, takes neither.
        if not (digits.isascii() and digits.isdigit()) or not -limit <= (number := int(text)) < limit:
            raise ConfigError(self._invalid(text, f"Not a number of type {self.kind.name}"))
        return number

    def _invalid(self, text: str, problem: str) -> str:
        shown = "[hidden]" if self.sensitive else text
        return f"Invalid value {shown} for configuration {self.name}: {problem}"


def attribute_of(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def format_value(value: Value) -> str | None:
    """A typed value as Kafka writes it into DescribeConfigs and files."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value).replace("e+", "E")  # Java's Double.toString writes exponents as 1.0E308
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def key(
    name: str,
    kind: Kind,
    default: Value,
    doc: str,
    validator: Validator | None = None,
    *,
    dynamic: bool = False,
    kafka_default: str | None = None,
    internal: bool = False,
    later: bool = False,
    value: Any = None,
) -> Any:
    """Declare a field that is a key; `value` is the attribute's default where its type is richer."""
    declared = Key(name, kind, default, doc, validator, dynamic, kafka_default, internal, later)
    return field(default=default if value is None else value, metadata={"key": declared})


class Configuration:
    """What the dataclasses of keys share: they are built from keyword arguments, and then never change."""

    __slots__ = ()

    _defaults: ClassVar[dict[str, Any]]

    def __init__(self, **values: Any) -> None:
        defaults = self._defaults
        for name in values:
            if name not in defaults:
                raise TypeError(f"{type(self).__name__} has no attribute {name}")
        for name, default in defaults.items():
            object.__setattr__(self, name, values.get(name, default))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Fills in what depends on other attributes."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={value!r}" for name, default in self._defaults.items() if (value := getattr(self, name)) != default
        )
        return f"{type(self).__name__}({shown})"


_C = TypeVar("_C", bound=Configuration)


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def configuration_part(cls: type[_C]) -> type[_C]:
    """A group of keys, to be inherited by a configuration."""
    return dataclass(init=False, repr=False, eq=False)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=False)
def configuration(cls: type[_C]) -> type[_C]:
    """A frozen dataclass with slots out of a class of keys and the parts it inherits."""
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    made._defaults = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(made)  # type: ignore[arg-type]
    }
    return made


def key_table(cls: type[Configuration]) -> dict[str, Key]:
    """The keys declared in a configuration, by name."""
    table = {}
    for each in fields(cls):  # type: ignore[arg-type]
        declared = each.metadata.get("key")
        if declared is not None:
            table[declared.name] = declared
    return table


def nearest(name: str, candidates: Iterable[str], cutoff: float = 0.75) -> str | None:
    """The candidate most like `name`, if one is close enough to be what was meant."""
    import difflib  # only when a key is wrong: keeps start-up short

    found = difflib.get_close_matches(name, list(candidates), n=1, cutoff=cutoff)
    return found[0] if found else None


def parse_csv_map(name: str, text: str) -> Mapping[str, str]:
    """`a:b,c:d` as a mapping, the form of listener.security.protocol.map."""
    result: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        left, colon, right = part.rpartition(":")
        if not colon or not left.strip() or not right.strip():
            raise ConfigError(f"Invalid value {text} for configuration {name}: {part!r} is not name:value")
        result[left.strip()] = right.strip()
    return result
