"""Log messages that would repeat many times a second while something lasts: one of each in a minute."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

INTERVAL_S = 60.0
KEYS_MAX = 1_000
"""Keys that are remembered: they may come from outside, as client ids do."""


class LogLimit:
    def __init__(self, interval_s: float = INTERVAL_S, *, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._interval_s = interval_s
        self._clock = clock
        self._logged_s: OrderedDict[Hashable, float] = OrderedDict()

    def allows(self, key: Hashable = None) -> bool:
        """Whether the message of that key is due: the first time, and again after the interval."""
        now_s = self._clock()
        logged_s = self._logged_s.get(key)
        if logged_s is not None and now_s - logged_s < self._interval_s:
            return False
        self._logged_s[key] = now_s
        self._logged_s.move_to_end(key)
        while len(self._logged_s) > KEYS_MAX:
            self._logged_s.popitem(last=False)
        return True

    def reset(self, key: Hashable = None) -> bool:
        """The problem is over: the next message is logged immediately. True if one was logged since the last."""
        return self._logged_s.pop(key, None) is not None
