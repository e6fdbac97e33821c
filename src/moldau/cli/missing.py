"""Commands of Kafka's that are not here: each says what to use instead."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from moldau.cli.registry import MISSING


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> int:
    """Under each of their names; their arguments do not matter."""
    name = Path(sys.argv[0]).name if prog is None else prog
    print(f"{name}: Moldau does not have this command; {MISSING[name.removesuffix('.sh')].use}", file=sys.stderr)
    return 2
