"""Option tables: each option once, with its name, type, default, description and whether it is a secret.

Lint, the JSON Schema and the reference page are made from these tables, and connectors get their values already
converted. A table may end in patterns (`kafka.*`), which accept any name with that prefix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.model.kinds import TEXT, Kind
from moldau.pipelines.model.places import Place, Problem

Value = Any
"""What a file can hold: text, number, boolean, None, list or mapping of these; from Python also functions."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as the user wrote it, with references (`${env:NAME}`) unresolved."""

    value: Value
    place: Place | None = None
    key_place: Place | None = None  # where the option's name stands


@dataclass(frozen=True, slots=True)
class Option:
    name: str  # a name that ends in `*` is a pattern
    doc: str  # one sentence
    kind: Kind = TEXT
    default: Value = None  # None: no default
    required: bool = False
    secret: bool = False  # never printed
    example: str = ""

    @property
    def is_pattern(self) -> bool:
        return self.name.endswith("*")

    def matches(self, name: str) -> bool:
        if not self.is_pattern:
            return name == self.name
        return name.startswith(self.name[:-1]) and len(name) >= len(self.name)


@dataclass(frozen=True)
class OptionTable:
    options: tuple[Option, ...] = field(default=())

    @classmethod
    def of(cls, *options: Option) -> OptionTable:
        return cls(options)

    def __iter__(self) -> Iterator[Option]:
        return iter(self.options)

    def __add__(self, other: OptionTable) -> OptionTable:
        return OptionTable(self.options + other.options)

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(option.name for option in self.options if not option.is_pattern)

    def find(self, name: str) -> Option | None:
        """The option of this name; an exact name wins over a pattern."""
        exact = next((option for option in self.options if option.name == name), None)
        return exact or next((option for option in self.options if option.is_pattern and option.matches(name)), None)

    def check(
        self, given: Mapping[str, Given], owner: str, place: Place | None, also: tuple[str, ...] = ()
    ) -> Iterator[Problem]:
        """What is wrong with these options. `owner` names whose they are: "source clicks".

        `also` are words that may stand beside the options.
        """
        meant = set[str | None]()
        for name, entry in given.items():
            option = self.find(name)
            if option is None:
                meant.add(meant_word(name, (*self.names, *also)))
                hint = options_hint(name, (*self.names, *also))
                yield Problem(f"{owner} has no option '{name}'{hint}", entry.key_place or entry.place)
            elif (reason := option.kind.wrong(entry.value)) is not None:
                shown = " has no value" if entry.value is None else f" {entry.value!r}"
                is_hidden = option.secret or is_secret(name)
                yield Problem(f"{owner}: {name}{'' if is_hidden else shown}: {reason}", entry.place)
        for option in self.options:
            if option.required and option.name not in given and option.name not in meant:
                example = f" Add for example `{option.name}: {option.example}`." if option.example else ""
                yield Problem(f"{owner} needs the option '{option.name}': {option.doc}{example}", place)

    def values(self, given: Mapping[str, Given]) -> dict[str, Value]:
        """Converted values with defaults, for options that are given or have one.

        Raises ConfigError for a reference that stands for a wrong value, which `check` cannot know.
        """
        found = {option.name: option.default for option in self.options if option.default is not None}
        for name, entry in given.items():
            option = self.find(name)
            if option is not None:
                try:
                    found[name] = option.kind.convert(entry.value)
                except ValueError as error:
                    where = f"{entry.place}: " if entry.place else ""
                    raise ConfigError(f"{where}{name}: {error}") from error  # without the value: it may be a secret
        return found


def value_text(value: Value) -> str:
    """A value for messages and comparisons. A function is `module:name`, which is the same in every process."""
    if callable(value):
        return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return str(value)


_SECRET = re.compile(r"password|secret|jaas|token|credential|private.?key|keystore\.key$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether an option that is passed through, such as `kafka.sasl.jaas.config`, holds a secret, by its name."""
    return _SECRET.search(name) is not None


def meant_word(word: str, known: Iterable[str]) -> str | None:
    """The known word with the same letters (`form`, `from`), else the one most like it."""
    words = list(known)
    swapped = next((each for each in words if sorted(each) == sorted(word)), None)
    return swapped or nearest(word, words)


def options_hint(name: str, names: tuple[str, ...], otherwise: str = "Its options are") -> str:
    """The end of a message about an unknown word: ": did you mean 'x'?", or the list of what is allowed."""
    meant = meant_word(name, names)
    if meant:
        return f": did you mean '{meant}'?"
    return f". {otherwise}: {', '.join(names)}." if names else ""
