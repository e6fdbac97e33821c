from typing import Any


def mark(counts: Any, spark: Any, limit: int = 3) -> Any:
    return counts


def keep(*views: Any) -> Any:
    return views[0]
