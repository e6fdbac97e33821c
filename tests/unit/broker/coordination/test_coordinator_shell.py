"""The shell of the coordinators, around a machine that only counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from moldau.broker import turns
from moldau.broker.coordination import coordinator_shell as shell
from moldau.broker.coordination.coordinator_shell import CoordinatorShell, Reply
from moldau.broker.coordination.state_topic import StateTopicSettings, java_hash
from moldau.broker.turns import Work
from moldau.coordinators.effects import Effects, NothingChanged
from moldau.errors import ErrorCode, KafkaError, StorageError
from moldau.log.producer_state import AppendOrigin
from moldau.metadata.topics import plan_delete_topic
from moldau.wire.batch import ControlType, encode_end_txn_marker
from moldau.wire.state_records import INT32, STRING, StateRecords, state_key, state_value, wire
from tests.unit.broker.offline import OfflineBroker, StartOffline, until


@state_key(kind=7)
class CountKey:
    name: str = wire(STRING)


@state_value(versions=(0, 0), written=0)
class CountValue:
    count: int = wire(INT32)


class Counters:
    """Counts per name; a name called "late" is answered by its wake-up only."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.markers: list[tuple[int, bool]] = []
        self.replayed: list[tuple[int, int]] = []
        self.woken: list[tuple[Any, int]] = []
        self.waiters: list[Any] = []

    def add(self, name: str, waiter: Any) -> Effects:
        effects = Effects()
        self.counts[name] = self.counts.get(name, 0) + 1
        effects.record(CountKey(name), CountValue(count=self.counts[name]))
        effects.reply(waiter, self.counts[name])
        return effects

    def tell(self, waiter: Any, name: str) -> Effects:
        effects = Effects()
        effects.reply(waiter, self.counts[name])
        return effects

    def wait(self, waiter: Any, at_ms: int) -> Effects:
        self.waiters.append(waiter)
        effects = Effects()
        effects.wake(at_ms, "late")
        return effects

    def replay(self, key: Any, value: Any | None, *, offset: int, timestamp_ms: int, producer_id: int = -1) -> None:
        self.replayed.append((offset, producer_id))
        if value is None:
            self.counts.pop(key.name, None)
        else:
            self.counts[key.name] = value.count

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        self.markers.append((producer_id, committed))

    def loaded(self, now_ms: int) -> Effects:
        return Effects()

    def wake(self, key: Any, now_ms: int) -> Effects:
        self.woken.append((key, now_ms))
        effects = Effects()
        for waiter in self.waiters:
            effects.reply(waiter, "woken")
        self.waiters.clear()
        return effects


def counters(broker: OfflineBroker, configs: dict[str, str] | None = None) -> CoordinatorShell[Counters]:
    settings = StateTopicSettings(4, {"cleanup.policy": "compact", **(configs or {})})
    return CoordinatorShell(
        broker.node.coordinator_context,
        broker.node.new_state_topic("__counters", lambda _: settings),
        StateRecords({CountKey: CountValue}),
        lambda _: Counters(),
    )


@pytest.fixture
async def started(offline_broker: OfflineBroker) -> CoordinatorShell[Counters]:
    coordinator = counters(offline_broker)
    await coordinator.ready()
    coordinator.follow()
    return coordinator


def add(name: str) -> Callable[[Counters, Reply, int], Effects]:
    return lambda shard, reply, _: shard.add(name, reply)


@pytest.mark.parametrize(
    ("text", "positive"),
    [("", 0), ("group", 98629247), ("my-group", 1906497762), ("žluťoučký", 1512236005), ("😀", 1772899)],
)
def test_keys_are_hashed_as_java_hashes_strings(text: str, positive: int) -> None:
    assert java_hash(text) == positive


def test_the_one_hash_without_an_absolute_value_counts_as_zero() -> None:
    assert java_hash("polygenelubricants") == 0  # its hashCode is Integer.MIN_VALUE


async def test_before_the_topic_is_there_no_coordinator_is_available(offline_broker: OfflineBroker) -> None:
    with pytest.raises(KafkaError) as error:
        counters(offline_broker).ask("a", add("a"))
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


async def test_a_step_is_answered_at_once_and_is_there_after_a_reload(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker
) -> None:
    assert [started.ask("a", add("a")) for _ in range(3)] == [1, 2, 3]
    again = counters(offline_broker)
    again.follow()
    await until(lambda: not again.is_loading)
    assert again.shard("a").counts == {"a": 3}
    assert [offset for offset, _ in again.shard("a").replayed] == [0, 1, 2]


async def test_while_a_shard_is_loaded_its_clients_are_told_so(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker
) -> None:
    started.ask("a", add("a"))
    again = counters(offline_broker)
    again.follow()
    with pytest.raises(KafkaError) as error:
        again.ask("a", add("a"))
    assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    await until(lambda: not again.is_loading)
    assert again.ask("a", add("a")) == 2


async def test_transactional_records_and_their_markers_are_replayed_as_such(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker
) -> None:
    def in_transaction(shard: Counters, reply: Reply, _: int) -> Effects:
        effects = shard.add("a", reply)
        effects.producer = (77, 0)
        return effects

    assert started.ask("a", in_transaction) == 1
    leader = offline_broker.node.find_partition("__counters", None, started.partition_for("a"))
    marker = encode_end_txn_marker(
        ControlType.COMMIT, coordinator_epoch=0, producer_id=77, producer_epoch=0, timestamp_ms=1
    )
    leader.append(memoryview(bytearray(marker)), 1, AppendOrigin.COORDINATOR)
    again = counters(offline_broker)
    again.follow()
    await until(lambda: not again.is_loading)
    assert again.shard("a").replayed == [(0, 77)]
    assert again.shard("a").markers == [(77, True)]


async def test_a_wake_comes_at_its_time_and_its_replies_arrive(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker
) -> None:
    begin_ms = offline_broker.node.monotonic_ms()
    reply = started.ask("a", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 30))
    assert await asyncio.wait_for(reply, 10) == "woken"
    ((key, at_ms),) = started.shard("a").woken
    assert key == "late"
    assert at_ms >= begin_ms + 30


async def test_an_earlier_wake_does_not_wait_for_a_later_one(started: CoordinatorShell[Counters]) -> None:
    later: Any = started.ask("a", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 60_000))
    sooner = started.ask("b", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 1))
    assert await asyncio.wait_for(sooner, 10) == "woken"
    assert not later.done()


async def test_when_the_log_refuses_memory_is_forgotten_and_whoever_waits_is_told(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    assert started.ask("a", add("a")) == 1
    waiting = started.ask("a", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 60_000))
    leader = offline_broker.node.find_partition("__counters", None, started.partition_for("a"))

    def full(*_: Any, **__: Any) -> None:
        raise StorageError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(type(leader), "append", full)
        with pytest.raises(KafkaError) as error:
            started.ask("a", add("a"))
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    with pytest.raises(KafkaError, match="no space left"):
        await waiting
    await until(lambda: not started.is_loading)
    assert started.ask("a", add("a")) == 2  # not 3: the refused step never happened


async def test_replies_wait_for_the_disk_where_the_topic_asks_for_it(start_offline: StartOffline) -> None:
    broker = start_offline()
    coordinator = counters(broker, {"flush.messages": "1"})
    await coordinator.ready()
    coordinator.follow()
    reply = coordinator.ask("a", add("a"))
    assert not isinstance(reply, int)
    assert await asyncio.wait_for(reply, 10) == 1
    leader = broker.node.find_partition("__counters", None, coordinator.partition_for("a"))
    assert leader.log.recovery_point == 1


async def test_a_step_without_records_waits_for_the_records_it_may_tell_of(start_offline: StartOffline) -> None:
    broker = start_offline()
    coordinator = counters(broker, {"flush.messages": "1"})
    await coordinator.ready()
    coordinator.follow()
    leader = broker.node.find_partition("__counters", None, coordinator.partition_for("a"))
    with leader.log.durability.flush_lock:  # the disk takes its time
        written = coordinator.ask("a", add("a"))
        told = coordinator.ask("a", lambda shard, waiter, _: shard.tell(waiter, "a"))
        assert not isinstance(told, int)
    assert list(await asyncio.wait_for(asyncio.gather(written, told), 10)) == [1, 1]


async def test_a_state_topic_that_is_deleted_takes_its_shards_along(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker
) -> None:
    started.ask("a", add("a"))
    await offline_broker.node.controller.change(lambda image: plan_delete_topic(image, "__counters"))
    started.follow()
    assert not started.shards()
    assert not started.is_loading
    with pytest.raises(KafkaError) as error:
        started.ask("a", add("a"))
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE


# -- what must not spread


class Slip(Exception):
    """No KafkaError: a mistake in a machine."""


def slip(shard: Counters, _: Any, __: int) -> Effects:
    shard.counts["a"] = 99  # memory that no record tells of
    raise Slip


async def test_a_slip_in_a_step_costs_the_shard_its_memory_but_nothing_that_was_written(
    started: CoordinatorShell[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    assert started.ask("a", add("a")) == 1
    waiting = started.ask("a", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 60_000))
    with pytest.raises(KafkaError) as error:
        started.ask("a", slip)
    assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR  # the same request would slip again
    with pytest.raises(KafkaError) as told:
        await waiting
    assert told.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: not started.is_loading)
    assert started.ask("a", add("a")) == 2


async def test_a_slip_in_a_wake_begins_again_too_and_other_wakes_come(
    started: CoordinatorShell[Counters], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    before = started.shard("a")
    monkeypatch.setattr(before, "wake", lambda key, now_ms: slip(before, key, now_ms))
    failing: Any = started.ask("a", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 1))
    failing.add_done_callback(lambda future: future.exception())
    other = started.ask("b", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 2))
    assert await asyncio.wait_for(other, 10) == "woken"
    await until(lambda: not started.is_loading)
    assert started.shard("a") is not before
    assert started.ask("a", add("a")) == 1


async def test_a_step_that_says_that_nothing_changed_keeps_its_shard(started: CoordinatorShell[Counters]) -> None:
    def lacks_something(*_: Any) -> Effects:
        raise NothingChanged

    before = started.shard("a")
    with pytest.raises(NothingChanged):
        started.ask("a", lacks_something)
    assert started.shard("a") is before


async def test_a_slip_at_a_marker_is_made_good_by_the_log(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    before = started.shard("a")
    monkeypatch.setattr(before, "replay_marker", lambda *_: slip(before, None, 0))
    started.marker_written(started.partition_for("a"), 77, True)
    await until(lambda: not started.is_loading)
    assert started.shard("a") is not before


async def test_a_slip_while_loading_is_tried_again(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    started.ask("a", add("a"))
    slips = iter([True, True])

    def replay(shard: Counters, key: Any, value: Any, **_: Any) -> None:
        if next(slips, False):
            raise Slip
        shard.counts[key.name] = value.count

    monkeypatch.setattr(Counters, "replay", replay)
    again = counters(offline_broker)
    again.follow()
    await until(lambda: not again.is_loading)
    assert again.shard("a").counts == {"a": 1}


async def test_a_batch_whose_crc_fails_is_not_loaded(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    started.ask("a", add("a"))
    leader = offline_broker.node.find_partition("__counters", None, started.partition_for("a"))
    read = type(leader.log).read

    def damaged(*args: Any, **options: Any) -> bytes:
        data = bytearray(read(*args, **options))
        data[-2] ^= 1  # in the count
        return bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr(type(leader.log), "read", damaged)
        again = counters(offline_broker)
        again.follow()
        await asyncio.sleep(0.05)
        assert again.is_loading
    await until(lambda: not again.is_loading)
    assert again.shard("a").counts == {"a": 1}


async def test_two_failures_of_one_flush_load_the_shard_once(
    start_offline: StartOffline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "RELOAD_DELAY_S", 0.01)
    broker = start_offline()
    coordinator = counters(broker, {"flush.messages": "1"})
    await coordinator.ready()
    coordinator.follow()
    loads: list[int] = []
    replay = CoordinatorShell._replay

    def counted(self: CoordinatorShell[Counters], partition: int, shard: Counters) -> Work[None]:
        loads.append(partition)
        return replay(self, partition, shard)

    def refused(*_: Any) -> asyncio.Future[None]:
        flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flushed.set_exception(StorageError("no"))
        return flushed

    monkeypatch.setattr(CoordinatorShell, "_replay", counted)
    with monkeypatch.context() as patch:
        patch.setattr(type(broker.node.group_commit), "flushed", refused)
        asked = [coordinator.ask("a", add("a")) for _ in range(3)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [KafkaError] * 3
    await until(lambda: not coordinator.is_loading)
    shard = coordinator.shard("a")
    await asyncio.sleep(0.05)
    assert coordinator.shard("a") is shard
    assert len(loads) == 1


async def test_a_topic_that_is_made_anew_while_the_old_one_is_loaded_begins_empty(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [started.ask("a", add("a")) for _ in range(5)][-1] == 5
    is_read, may_end = asyncio.Event(), asyncio.Event()
    replay = CoordinatorShell._replay

    def slow(self: CoordinatorShell[Counters], partition: int, shard: Counters) -> Work[None]:
        yield from replay(self, partition, shard)
        is_read.set()
        yield may_end.wait()

    monkeypatch.setattr(CoordinatorShell, "_replay", slow)
    again = counters(offline_broker)
    again.follow()
    await is_read.wait()
    await offline_broker.node.controller.change(lambda image: plan_delete_topic(image, "__counters"))
    again.follow()
    await again.ready()
    again.follow()
    assert again.ask("a", add("a")) == 1
    may_end.set()
    await asyncio.sleep(0.01)
    assert again.ask("a", add("a")) == 2


async def test_a_coordinator_that_stops_answers_whoever_waits_and_takes_no_more_steps(
    started: CoordinatorShell[Counters],
) -> None:
    shard = started.shard("a")
    waiting = started.ask("a", lambda shard, waiter, now_ms: shard.wait(waiter, now_ms + 1))
    started.stop()
    with pytest.raises(KafkaError) as told:
        await waiting
    assert told.value.code is ErrorCode.NOT_COORDINATOR
    with pytest.raises(KafkaError) as refused:
        started.ask("a", add("a"))
    assert refused.value.code is ErrorCode.NOT_COORDINATOR
    started.follow()  # metadata may still change
    await asyncio.sleep(0.01)
    assert not shard.woken
    assert not started.shards()


# -- the loop


async def test_loading_lets_others_have_their_turn_even_within_a_batch(
    started: CoordinatorShell[Counters], offline_broker: OfflineBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "TURN_S", 0.0)

    def many(shard: Counters, reply: Reply, _: int) -> Effects:
        effects = shard.add("a", reply)
        effects.records *= 100
        return effects

    for name in "abcd":
        started.ask(name, many)
    replayed: list[Any] = []
    monkeypatch.setattr(Counters, "replay", lambda _, key, *__, **___: replayed.append(key))
    again = counters(offline_broker)
    again.follow()
    while again.is_loading:
        before = len(replayed)
        await asyncio.sleep(0)
        assert len(replayed) - before <= 2  # of all four shards together, from the first record on
    assert len(replayed) == 400


async def test_who_asks_a_shard_that_goes_in_the_same_breath_does_not_wait_for_good(
    started: CoordinatorShell[Counters],
) -> None:
    class Slipping:
        def arrive(self, _: Any) -> None:
            """A waiter that takes a step of its own, which slips."""
            with pytest.raises(KafkaError):
                started.run(started.partition_for("a"), lambda shard, now_ms: slip(shard, None, now_ms))

    def step(shard: Counters, reply: Reply, now_ms: int) -> Effects:
        effects = shard.wait(reply, now_ms + 60_000)
        effects.reply(Slipping(), None)
        return effects

    with pytest.raises(KafkaError) as error:
        started.ask("a", step)
    assert error.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
