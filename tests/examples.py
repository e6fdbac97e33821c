"""How many examples property tests try: all in `make test`, a third in `make check`, which people run all the time."""

from __future__ import annotations

import os

_LEAST = 10
_DEFAULT = 100  # as Hypothesis has it


def examples(count: int = _DEFAULT) -> int:
    """Of `count`, those that this run tries."""
    return min(count, max(count // 3, _LEAST)) if os.environ.get("MOLDAU_QUICK_EXAMPLES") else count
