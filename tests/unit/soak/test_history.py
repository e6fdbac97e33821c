"""The checker finds each anomaly in a history that has it, and none in one that has none."""

from __future__ import annotations

from soak.history import End, History, Outcome, Read, Transaction, Write, check

OK, FAIL, UNKNOWN = Outcome.OK, Outcome.FAIL, Outcome.UNKNOWN


def write(number: int, offset: int | None, outcome: Outcome = OK, **options: object) -> Write:
    """At second `number`, acknowledged half a second later."""
    made = Write("p", number, 0, f"p:{number}", float(number), outcome=outcome, offset=offset, **options)  # type: ignore[arg-type]
    made.completed_s = number + 0.5 if outcome is OK else float("inf")
    if made.transaction is not None:
        made.transaction.writes.append(made)
    return made


def final(*values: str | None, committed: list[str] | None = None) -> list[Read]:
    """The log at the end: a value by offset, None for a marker; committed ones are all or the named."""
    records = [(offset, value) for offset, value in enumerate(values) if value is not None]
    shown = records if committed is None else [(offset, value) for offset, value in records if value in committed]
    return [Read("final", 0, 0, False, records), Read("final", 0, 0, True, shown)]


def kinds(history: History) -> list[str]:
    return [anomaly.kind for anomaly in check(history)]


def good() -> History:
    committed, aborted = Transaction("t1", OK), Transaction("t2", FAIL)
    return History(
        writes=[
            write(0, 0),
            write(1, 1, transaction=committed),
            write(2, 2, transaction=committed),
            write(3, 4, transaction=aborted),
            write(4, None, UNKNOWN),
            write(5, 6),
        ],
        transactions=[committed, aborted],
        reads=[
            Read("a", 0, 0, False, [(0, "p:0"), (1, "p:1")]),
            Read("a", 0, 0, False, [(2, "p:2"), (4, "p:3")]),
            Read("a", 1, 0, False, [(0, "p:0")]),
            Read("b", 0, 0, True, [(2, "p:2"), (6, "p:5")]),
        ],
        ends=[End(0, 0.2, 0), End(0, 0.7, 1), End(0, 6.0, 7)],
        final=final("p:0", "p:1", "p:2", None, "p:3", None, "p:5", committed=["p:0", "p:1", "p:2", "p:5"]),
    )


def test_a_good_history_has_no_anomaly() -> None:
    history = good()
    assert check(history) == []
    assert history.operations == 15
    assert history.outcomes() == {"ok": 5, "unknown": 1}


def test_an_acknowledged_write_that_is_not_there_is_lost() -> None:
    history = History(writes=[write(0, 0), write(1, 1), write(2, 2)], final=final("p:0", None, "p:2"))
    assert kinds(history) == ["lost"]
    assert "later ones are there" in str(check(history)[0])


def test_an_acknowledged_write_after_the_end_is_lost() -> None:
    history = History(writes=[write(0, 0), write(1, 1)], final=final("p:0"))
    assert kinds(history) == ["lost"]
    assert "ends before it" in str(check(history)[0])


def test_a_write_of_unknown_end_may_be_there_or_not() -> None:
    for log in (final("p:0", "p:1"), final("p:0")):
        assert kinds(History(writes=[write(0, 0), write(1, None, UNKNOWN)], final=log)) == []


def test_a_record_that_was_read_and_is_gone_is_lost() -> None:
    reads = [Read("a", 0, 0, False, [(0, "p:0"), (1, "p:1")])]
    history = History(writes=[write(0, 0), write(1, None, UNKNOWN)], reads=reads, final=final("p:0"))
    assert kinds(history) == ["lost"]


def test_one_value_at_two_offsets_is_duplicated() -> None:
    history = History(writes=[write(0, 0)], final=final("p:0", "p:0")[:1])
    assert kinds(history) == ["duplicated"]


def test_two_values_at_one_offset_disagree() -> None:
    history = History(
        writes=[write(0, 0), write(1, None, UNKNOWN)],
        reads=[Read("a", 0, 0, False, [(0, "p:1")])],
        final=final("p:0", "p:1"),
    )
    assert kinds(history) == ["disagreement"]


def test_an_acknowledgement_with_another_offset_disagrees() -> None:
    history = History(writes=[write(0, 1), write(1, None, UNKNOWN)], final=final("p:0", "p:1"))
    assert kinds(history) == ["disagreement"]


def test_a_later_value_before_an_earlier_one_is_reordered() -> None:
    history = History(writes=[write(0, 1), write(1, 0)], final=final("p:1", "p:0"))
    assert kinds(history) == ["reordered"]


def test_a_record_of_an_aborted_transaction_must_not_be_read_as_committed() -> None:
    aborted = Transaction("t", FAIL)
    history = History(
        writes=[write(0, 0, transaction=aborted)],
        transactions=[aborted],
        reads=[Read("a", 0, 0, True, [(0, "p:0")])],
        final=final("p:0", None, committed=[]),
    )
    assert kinds(history) == ["aborted"]


def test_a_refused_write_must_not_be_read_at_all() -> None:
    history = History(writes=[write(0, None, FAIL)], final=final("p:0")[:1])
    assert kinds(history) == ["aborted"]


def test_a_transaction_is_there_as_a_whole_or_not_at_all() -> None:
    for outcome in (OK, UNKNOWN):
        torn = Transaction("t", outcome)
        writes = [write(0, 0, transaction=torn), write(1, 1, transaction=torn)]
        history = History(writes=writes, transactions=[torn], final=final("p:0", "p:1", committed=["p:0"]))
        assert kinds(history) == ["torn"]


def test_a_committed_transaction_that_is_invisible_is_torn() -> None:
    gone = Transaction("t", OK)
    history = History(
        writes=[write(0, 0, transaction=gone)], transactions=[gone], final=final("p:0", None, committed=[])
    )
    assert kinds(history) == ["torn"]


def test_an_end_before_an_acknowledged_write_is_stale() -> None:
    log = final("p:0", "p:1")
    assert kinds(History(writes=[write(0, 0), write(1, 1)], ends=[End(0, 1.6, 1)], final=log)) == ["stale"]
    assert kinds(History(writes=[write(0, 0), write(1, 1)], ends=[End(0, 1.4, 1)], final=log)) == []


def test_a_consumer_that_gets_an_offset_again_goes_backwards() -> None:
    again = [Read("a", 0, 0, False, [(0, "p:0"), (1, "p:1")]), Read("a", 0, 0, False, [(1, "p:1")])]
    history = History(writes=[write(0, 0), write(1, 1)], reads=again, final=final("p:0", "p:1"))
    assert kinds(history) == ["backwards"]


def test_a_consumer_that_misses_a_record_skipped_it() -> None:
    reads = [Read("a", 0, 0, False, [(0, "p:0"), (2, "p:2")])]
    history = History(writes=[write(0, 0), write(1, 1), write(2, 2)], reads=reads, final=final("p:0", "p:1", "p:2"))
    assert kinds(history) == ["skipped"]
