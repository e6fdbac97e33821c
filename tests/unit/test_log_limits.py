"""One log message a minute of what would be many."""

from __future__ import annotations

from moldau.log_limits import KEYS_MAX, LogLimit


def test_each_key_is_due_once_in_the_interval_and_at_once_after_a_reset() -> None:
    now_s = [0.0]
    limit = LogLimit(60, clock=lambda: now_s[0])
    assert [limit.allows("a"), limit.allows("a"), limit.allows("b")] == [True, False, True]
    now_s[0] = 59.9
    assert not limit.allows("a")
    now_s[0] = 60
    assert limit.allows("a")
    assert limit.reset("a")
    assert not limit.reset("a")
    assert limit.allows("a")


def test_keys_from_outside_do_not_fill_the_memory() -> None:
    limit = LogLimit(clock=lambda: 0.0)
    assert all(limit.allows(number) for number in range(10 * KEYS_MAX))
    assert len(limit._logged_s) == KEYS_MAX
