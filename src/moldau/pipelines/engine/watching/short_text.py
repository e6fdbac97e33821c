"""Numbers, sizes and times in at most five characters, and sparklines: for tables that fit into a terminal."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"


def short(value: float | None, units: Sequence[str] = ("", "k", "M", "G", "T"), step: int = 1000) -> str:
    """At most five characters: 950, 9.5k, 950k, 1.2M."""
    if value is None:
        return "-"
    for unit in units[:-1]:
        if value < 10 and (unit or value != int(value)):
            return f"{value:.1f}{unit}"
        if value < step - 0.5:
            return f"{value:.0f}{unit}"
        value /= step
    return f"{value:.0f}{units[-1]}"


def short_bytes(value: float | None) -> str:
    return short(value, ("B", "KB", "MB", "GB", "TB"), 1024)


def short_seconds(value: float | None) -> str:
    """At most five characters: 12ms, 1.2s, 45s, 12min, 3.5h, 12d."""
    if value is None:
        return "-"
    if value < 1:
        return f"{value * 1000:.0f}ms" if value < 0.9995 else "1.0s"
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if value < limit:
            return f"{value / size:.1f}{unit}" if unit == "s" and value < 9.95 else f"{value / size:.0f}{unit}"
    return f"{value / 86_400:.0f}d"


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars, the highest of them as the full height."""
    shown = values[-width:]
    top = max(shown, default=0.0)
    return "".join(_BARS[min(int(value / top * len(_BARS)), len(_BARS) - 1)] if top else _BARS[0] for value in shown)
