"""Paths to fields (KIP-821). In Apache Kafka 4.2, `ExtractField` is the one transform that has them.

V1 is the name of a field. V2 has steps with dots between; a step in backticks may have dots in it, and a backtick
before a dot in it has a backslash.
"""

from __future__ import annotations


def steps_of(path: str, version: str) -> tuple[str, ...]:
    """Raises ValueError for a backtick that is not closed."""
    if version.upper() == "V1":
        return (path,)
    steps: list[str] = []
    at = 0
    while at < len(path):
        step, at = _quoted(path, at) if path[at] == "`" else _plain(path, at)
        steps.append(step)
    if path.endswith("."):
        steps.append("")
    return tuple(steps)


def _plain(path: str, start: int) -> tuple[str, int]:
    dot = path.find(".", start)
    return (path[start:], len(path)) if dot < 0 else (path[start:dot], dot + 1)


def _quoted(path: str, opening: int) -> tuple[str, int]:
    """The step in backticks, and where the next one starts. Only a backtick before a dot or at the end closes it."""
    step, start = "", opening + 1
    closing = path.find("`", start)
    while closing >= 0:
        is_last, is_escaped = closing == len(path) - 1, path[closing - 1] == "\\"
        if (is_last or path[closing + 1] == ".") and not is_escaped:
            return step + path[start:closing], closing + (1 if is_last else 2)
        if not is_last and path[closing + 1] == ".":
            step, start = step + path[start : closing - 1] + "`", closing + 1
        closing = path.find("`", closing + 1)
    raise ValueError(
        f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick at position "
        f"{opening} to escape it"
    )
