"""The largest valid requests of every API, a little smaller: none of them keeps the broker from serving others."""

from __future__ import annotations

from pathlib import Path

from fuzz.holds import WatchedBroker, attack

ENTRIES = 3000
HOLD_MAX_S = 0.04
"""CPU time of one step of the loop. `make fuzz` holds the largest requests to 20 ms; here the machine may be slow, and
what is done in one go takes several times as long with so many entries."""


def test_no_request_holds_up_the_others(tmp_path: Path) -> None:
    with WatchedBroker(tmp_path) as broker:
        outcomes = list(attack(broker, entries_max=ENTRIES))
        assert len(outcomes) > 200, "every array of every request"
        assert not [each.request[:4] for each in outcomes if each.answer == "silent"]
        slow = [(*each.request[:4], f"{each.hold_s:.3f} s") for each in outcomes if each.hold_s > HOLD_MAX_S]
        assert not slow
        refused = [each.request[:4] for each in outcomes if each.answer == "closed"]
        assert not refused, "all of them are valid"
        assert broker.metrics()["moldau_unexpected_errors_total"] == 0, broker.output()[-5000:]
