"""RE2's regular expressions, matched in linear time, as Kafka's broker does with RE2/J (`compile_regex`). Commands only
check their syntax (`check_syntax`).

Python's `re` backtracks: a pattern of twenty characters keeps it busy for years, and patterns come from clients and are
matched on the broker's one loop. Forbidding the dangerous ones (`(a|a)*`, `.*.*.*x`, …) would forbid good ones, so the
pattern becomes an automaton instead (Thompson's construction), and each topic name is walked through it once; the sets
of states met on the way are kept (a lazy DFA). That gives RE2's guarantee at RE2's price: what needs memory of the
match, backreferences and look-around, is not part of its syntax. Word boundaries are, but cannot be matched here.

    alternative  one '|' other                   class  [a-z], [^…], [[:alpha:]], \\d \\w \\s \\pL, negated too, '.'
    repeat       * + ? {n} {n,} {n,m}, lazy too  group  (…), (?:…), (?P<name>…), (?i) and (?i:…)
    anchors      ^ $ \\A \\z \\b \\B               quote  \\Q…\\E, \\x41, \\x{41}, \\n and the like
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from moldau.errors import InvalidRegexError

MAX_PATTERN_CHARS = 4_096
"""A topic name has 249 characters; an alternative of many of them still fits."""
MAX_REPEAT = 1_000
"""RE2's own limit: `{1000}` is written out a thousand times."""
MAX_STATES = 4_000
"""States of the automaton: nested repeats multiply them."""
MAX_REMEMBERED = 20_000
"""States in the sets that are remembered, a megabyte or two; then all are forgotten and found again."""
MAX_WORK = 60_000
"""States that a look through all topics may step over, for all patterns that are matched in one step: 20 ms. Those that
people write need a few thousand each, whatever the number of topics, since the remembered sets are met again."""
MAX_DEPTH = 100
"""Nested parentheses, which are parsed recursively."""

ALPHABET = "".join(map(chr, range(128)))
"""Topic names are ASCII; a class is the set of its members among these."""

_ESCAPES = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_POSIX_TESTS: dict[str, Callable[[str], bool]] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "ascii": str.isascii,
    "blank": lambda char: char in " \t",
    "digit": str.isdigit,
    "lower": str.islower,
    "punct": lambda char: char.isprintable() and not char.isalnum() and char != " ",
    "space": str.isspace,
    "upper": str.isupper,
    "word": lambda char: char.isalnum() or char == "_",
    "xdigit": lambda char: char in "0123456789abcdefABCDEF",
}
_POSIX = {name: frozenset(filter(test, ALPHABET)) for name, test in _POSIX_TESTS.items()}
_CLASSES = {"d": _POSIX["digit"], "w": _POSIX["word"], "s": frozenset("\t\n\f\r ")}
_EVERYTHING = frozenset(ALPHABET)
_FLAGS = frozenset("imsU")
"""Only i changes what a whole topic name matches: names have no newlines, and laziness does not matter."""


class _State:
    """A state of the NFA: reads one of `chars` and goes to its `next`; without any, goes to all of them at once."""

    __slots__ = ("anchor", "chars", "next")

    def __init__(self, chars: frozenset[str] | None = None, anchor: str = "") -> None:
        self.chars = chars
        self.anchor = anchor
        self.next: list[_State] = []


_ALWAYS = frozenset((_State(),))
"""Within a `.*` at the end of the pattern: whatever follows, it matches. Most patterns end like this."""


class _Fragment(NamedTuple):
    first: _State
    last: _State


_Piece: TypeAlias = Callable[[], _Fragment]
"""Makes its part of the automaton, anew at each call: a repeat needs several."""


@lru_cache(maxsize=32)
def compile_regex(pattern: str) -> Regex:
    """The automaton of `pattern`; INVALID_REGULAR_EXPRESSION for what is none, or is too large."""
    return Regex(pattern)


class Regex:
    """Matches whole topic names."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise InvalidRegexError(pattern, f"longer than {MAX_PATTERN_CHARS} characters")
        self._pattern = pattern
        self._first, last = _Parser(pattern).parse()()
        self._accept = _State()
        last.next.append(self._accept)
        self._work_left = MAX_WORK
        self._forget()

    def filter(self, names: Iterable[str], max_work: int = MAX_WORK) -> frozenset[str]:
        """The names that match; INVALID_REGULAR_EXPRESSION if finding them takes more work than `max_work`."""
        self._work_left = max_work
        return frozenset(filter(self.matches, names))

    def matches(self, name: str) -> bool:
        states = self._start
        for char in name:
            if states is _ALWAYS:
                return True
            following = self._moves[states].get(char)
            if following is None:
                following = self._move(states, char)
            if not following:
                return False
            states = following
        return states is _ALWAYS or self._accept in _closure(states, at_start=not name, at_end=True)

    def _move(self, states: frozenset[_State], char: str) -> frozenset[_State]:
        reached = [state.next[0] for state in states if state.chars is not None and char in state.chars]
        following = self._states(reached)
        self._work_left -= len(states) + len(following)
        if self._work_left < 0:
            raise InvalidRegexError(self._pattern, "it takes too long to match")
        if self._remembered > MAX_REMEMBERED:
            self._forget()
        self._moves.setdefault(states, {})[char] = following
        if following not in self._moves:
            self._moves[following] = {}
            self._remembered += len(following)
        return following

    def _states(self, reached: Iterable[_State], *, at_start: bool = False) -> frozenset[_State]:
        states = _closure(reached, at_start=at_start)
        for state in states:
            if state.chars is _EVERYTHING and {state, self._accept} <= _closure(state.next):
                return _ALWAYS
        return states

    def _forget(self) -> None:
        self._start = self._states((self._first,), at_start=True)
        self._moves: dict[frozenset[_State], dict[str, frozenset[_State]]] = {self._start: {}}
        self._remembered = 0


def _unicode_members(name: str) -> frozenset[str]:
    """The ASCII members of a general category, such as L or Lu, or of a script, of which only Latin has any."""
    if name == "Latin":
        return _POSIX["alpha"]
    return frozenset(char for char in ALPHABET if unicodedata.category(char).startswith(name))


def check_syntax(pattern: str) -> None:
    """InvalidRegexError for what is not RE2's syntax, though it may be more than this broker can match."""
    _Parser(pattern).parse()


def _closure(states: Iterable[_State], *, at_start: bool = False, at_end: bool = False) -> frozenset[_State]:
    """Where one is without reading anything more: states that read, that accept, or that wait for the end."""
    seen: set[_State] = set()
    stack = list(states)
    while stack:
        state = stack.pop()
        if state not in seen:
            seen.add(state)
            if state.chars is None and (not state.anchor or (at_start if state.anchor == "^" else at_end)):
                stack += state.next
    return frozenset(state for state in seen if state.chars is not None or state.anchor == "$" or not state.next)


class _Parser:
    """Reads a pattern by recursive descent: alternatives of sequences of repeated atoms."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._pos = 0
        self._depth = 0
        self._count = 0
        self._ignore_case = False

    def parse(self) -> _Piece:
        piece = self._alternatives()
        if self._pos < len(self._pattern):
            raise self._error("unexpected )")
        return piece

    # -- the text

    def _error(self, why: str) -> InvalidRegexError:
        return InvalidRegexError(self._pattern, why)

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._pos)

    def _take(self, text: str) -> bool:
        if self._peek(text):
            self._pos += len(text)
            return True
        return False

    def _next(self) -> str:
        if self._pos >= len(self._pattern):
            raise self._error("unexpected end of the expression")
        self._pos += 1
        return self._pattern[self._pos - 1]

    def _match(self, regex: str) -> re.Match[str] | None:
        """These are our own, of the parts that have no structure; the client's pattern is what they read."""
        found = re.compile(regex).match(self._pattern, self._pos)
        if found is not None:
            self._pos = found.end()
        return found

    # -- its structure

    def _alternatives(self) -> _Piece:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"expression nests more than {MAX_DEPTH} groups")
        ignore_case = self._ignore_case
        pieces = [self._sequence()]
        while self._take("|"):
            pieces.append(self._sequence())
        self._depth -= 1
        self._ignore_case = ignore_case
        return pieces[0] if len(pieces) == 1 else lambda: self._either(pieces)

    def _sequence(self) -> _Piece:
        pieces: list[_Piece] = []
        while self._pos < len(self._pattern) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                end = self._pattern.find("\\E", self._pos)
                text = self._pattern[self._pos : end if end >= 0 else None]
                self._pos += len(text) + 2
                pieces += [self._reads(self._cased(frozenset(char))) for char in text]
                if text:
                    pieces[-1] = self._repeats(pieces[-1])
                continue
            atom = self._atom()
            if atom is not None:
                pieces.append(self._repeats(atom))
        return lambda: self._chain(pieces)

    def _atom(self) -> _Piece | None:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._reads(self._cased(self._char_class()))
        if char in "*+?":
            raise self._error(f"missing argument to repetition operator: {char}")
        if char in "^$":
            return lambda: self._single(_State(anchor=char))
        if char == "\\" and (self._peek("A") or self._peek("z")):
            anchor = "^" if self._next() == "A" else "$"
            return lambda: self._single(_State(anchor=anchor))
        if char == "\\" and (self._take("b") or self._take("B")):
            return self._word_boundary
        if char == ".":
            return self._reads(_EVERYTHING)
        return self._reads(self._cased(self._escape() if char == "\\" else frozenset(char)))

    def _group(self) -> _Piece | None:
        ignore_case = self._ignore_case
        if self._take("?"):
            flags = self._match(r"([a-zA-Z]*)(-[a-zA-Z]+)?([:)])") or self._match(r"P?<(\w+)(>)()")
            if flags is None or (flags[2] != ">" and not _FLAGS.issuperset(flags[1] + (flags[2] or "-")[1:])):
                raise self._error("invalid or unsupported Perl syntax")
            if flags[2] != ">":
                self._ignore_case = "i" in flags[1] or (ignore_case and "i" not in (flags[2] or ""))
                if flags[3] == ")":
                    return None
        piece = self._alternatives()
        self._ignore_case = ignore_case
        if not self._take(")"):
            raise self._error("missing closing )")
        return piece

    def _repeats(self, piece: _Piece) -> _Piece:
        bounds = self._match(r"\*|\+|\?|\{(\d{1,5})(,?)(\d{0,5})\}")
        if bounds is None:
            return piece
        self._take("?")  # lazy: the same names match
        if re.compile(r"\*|\+|\?|\{\d+,?\d*\}").match(self._pattern, self._pos):
            raise self._error("invalid nested repetition operator")
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(bounds[0], (0, 0))
        if bounds[1] is not None:
            least = int(bounds[1])
            most = int(bounds[3]) if bounds[3] else None if bounds[2] else least
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._error(f"invalid repeat count: {bounds[0]}")
        return lambda: self._repeated(piece, least, most)

    # -- sets of characters

    def _escape(self) -> frozenset[str]:
        char = self._next()
        if char.lower() in _CLASSES:
            members = _CLASSES[char.lower()]
            return members if char.islower() else _EVERYTHING - members
        if char in "pP":
            return self._unicode_class(negated=char == "P")
        if char in _ESCAPES:
            return frozenset(_ESCAPES[char])
        if char == "x":
            code = self._match(r"([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\}")
            if code is None or int(code[1] or code[2], 16) > 0x10FFFF:
                raise self._error("invalid escape sequence: \\x")
            return frozenset(chr(int(code[1] or code[2], 16)))
        if char.isalnum():
            raise self._error(f"invalid escape sequence: \\{char}")
        return frozenset(char)

    def _unicode_class(self, *, negated: bool) -> frozenset[str]:
        name = self._match(r"([A-Z])|\{(\^?)(\w+)\}")
        if name is None:
            raise self._error("invalid character class: \\p")
        if name[2]:
            negated = not negated
        members = _unicode_members(name[1] or name[3])
        return _EVERYTHING - members if negated else members

    def _char_class(self) -> frozenset[str]:
        negated = self._take("^")
        members: set[str] = set()
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            posix = self._match(r"\[:(\^?)(\w+):\]")
            if posix is not None:
                if posix[2] not in _POSIX:
                    raise self._error(f"invalid character class: {posix[0]}")
                members |= _EVERYTHING - _POSIX[posix[2]] if posix[1] else _POSIX[posix[2]]
                continue
            low = self._class_member()
            if self._peek("-") and not self._peek("-]"):
                self._next()
                members |= self._range(low, self._class_member())
            else:
                members |= low
        return frozenset(_EVERYTHING - members if negated else members)

    def _class_member(self) -> frozenset[str]:
        char = self._next()
        return self._escape() if char == "\\" else frozenset(char)

    def _range(self, low: frozenset[str], high: frozenset[str]) -> set[str]:
        if len(low) != 1 or len(high) != 1 or min(low) > min(high):
            raise self._error("invalid character class range")
        return {char for char in ALPHABET if min(low) <= char <= min(high)}

    def _cased(self, members: frozenset[str]) -> frozenset[str]:
        if not self._ignore_case:
            return members
        return members | {char.lower() for char in members} | {char.upper() for char in members}

    # -- its automaton

    def _new(self, state: _State) -> _State:
        self._count += 1
        if self._count > MAX_STATES:
            raise self._error(f"its automaton has more than {MAX_STATES} states")
        return state

    def _single(self, state: _State) -> _Fragment:
        last = self._new(_State())
        self._new(state).next.append(last)
        return _Fragment(state, last)

    def _word_boundary(self) -> _Fragment:
        raise self._error("word boundaries are not supported")

    def _reads(self, chars: frozenset[str]) -> _Piece:
        return lambda: self._single(_State(chars))

    def _chain(self, pieces: list[_Piece]) -> _Fragment:
        first = last = self._new(_State())
        for piece in pieces:
            fragment = piece()
            last.next.append(fragment.first)
            last = fragment.last
        return _Fragment(first, last)

    def _either(self, pieces: list[_Piece]) -> _Fragment:
        first, last = self._new(_State()), self._new(_State())
        for piece in pieces:
            fragment = piece()
            first.next.append(fragment.first)
            fragment.last.next.append(last)
        return _Fragment(first, last)

    def _repeated(self, piece: _Piece, least: int, most: int | None) -> _Fragment:
        first = last = self._new(_State())
        for _ in range(least):
            fragment = piece()
            last.next.append(fragment.first)
            last = fragment.last
        end = self._new(_State())
        last.next.append(end)
        if most is None:
            fragment = piece()
            end.next.append(fragment.first)
            fragment.last.next.append(end)
            return _Fragment(first, end)
        for _ in range(most - least):
            fragment = piece()
            last.next.append(fragment.first)
            last = fragment.last
            last.next.append(end)
        return _Fragment(first, end)
