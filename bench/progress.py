"""How a client process tells how far it is: lines of their own, which the runner passes on."""

from __future__ import annotations

PROGRESS = "progress "


def say(line: str) -> None:
    print(f"{PROGRESS}{line}", flush=True)
