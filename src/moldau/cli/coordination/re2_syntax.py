"""Whether a regular expression is one of RE2's, which is what brokers match subscriptions with.

RE2 gives up look-around and back-references for matching in linear time. Python's engine has those and lacks a
few notations of RE2's, so a pattern is first rid of the former (by complaint) and the latter (by a stand-in), and
then Python's parser judges the rest.
"""

from __future__ import annotations

import re
import warnings

# What may stand in a pattern: an escape, a class, or the start of a group. The rest is taken letter by letter.
_PIECE = re.compile(
    r"(?P<quoted>\\Q.*?(?:\\E|$))|(?P<property>\\[pP](?:\{\^?\w+\}|\w))|(?P<end>\\[zC])|(?P<back>\\[1-9])|\\."
    r"|(?P<set>\[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\])"
    r"|(?P<flags>\(\?[imsU]*(?:-[imsU]+)?(?P<scope>[:)]))|(?P<name>\(\?P?<(?![=!])\w+>)"
    r"|(?P<perl>\(\?)|(?P<possessive>[*+?}]\+)|.",
    re.DOTALL,
)


def complaint(pattern: str) -> str | None:
    """What RE2 would say against the pattern; None for nothing."""
    parts = []
    for piece in _PIECE.finditer(pattern):
        kind = piece.lastgroup
        if kind == "perl":
            return "invalid or unsupported Perl syntax"
        if kind == "back":
            return "invalid escape sequence"
        if kind == "possessive":
            return "invalid nested repetition operator"
        parts.append(_for_python(kind, piece))
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile("".join(parts))
    except re.error as error:
        return error.msg
    return None


def _for_python(kind: str | None, piece: re.Match[str]) -> str:
    """The piece, or something that Python reads and that can be repeated alike."""
    if kind in ("quoted", "property", "end"):
        return "(?:x)"
    if kind == "set":
        return re.sub(r"\[:\^?\w+:\]|\\[pP](?:\{\^?\w+\}|\w)", "x", piece[0])
    if kind in ("scope", "flags"):
        return "(?:" if piece["scope"] == ":" else "(?:x)"
    if kind == "name":
        return "("
    return piece[0]
