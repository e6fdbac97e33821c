"""`simulate`: what comes out of a story, and what is said when one goes wrong."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.errors import KafkaError, MoldauError
from moldau.testing.simulation import SimulatedKafka, SimulationError, simulate
from moldau.testing.simulation.loop import NOTES_MAX

Story = Callable[[SimulatedKafka], Awaitable[object]]


def note_of(error: BaseException) -> str:
    (note,) = error.__notes__[-1:]
    return str(note)


def failing(
    story: Story, kind: type[BaseException] = SimulationError, *, seed: int = 0, limit_s: float = 600
) -> BaseException:
    with pytest.raises(kind) as caught:
        simulate(story, brokers=1, seed=seed, limit_s=limit_s)
    return caught.value


def test_a_story_returns_its_result_once_for_each_seed() -> None:
    async def story(cluster: SimulatedKafka) -> float:
        return cluster.random.random()

    assert simulate(story, brokers=1, seed=3) == simulate(story, brokers=1, seed=3)
    first, second = simulate(story, brokers=1, seeds=(3, 4))
    assert first != second


def test_hours_pass_while_no_time_does() -> None:
    async def story(cluster: SimulatedKafka) -> tuple[float, float, float]:
        began = cluster.now, time.monotonic(), time.time()
        await asyncio.sleep(60)
        return cluster.now - began[0], time.monotonic() - began[1], time.time() - began[2]

    assert simulate(story, brokers=1) == pytest.approx((60, 60, 60), abs=0.1)


def test_a_failure_comes_with_its_seed_and_its_timeline() -> None:
    async def story(cluster: SimulatedKafka) -> None:
        cluster.note("about to fail")
        cluster.brokers[1].kill()
        assert not cluster.brokers[1].is_running
        raise ValueError("as it is")

    error = failing(story, ValueError, seed=17)
    assert str(error) == "as it is"
    lines = note_of(error).splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[-5:-2]] == [
        "application    about to fail",
        "broker-1       is killed",
        "application    raises ValueError",
    ]
    assert lines[-2].startswith("Simulated with seed=17, ")
    assert lines[-1].startswith("Run it again: simulate(…, seed=17) in a process with PYTHONHASHSEED=")


@pytest.mark.parametrize(
    ("hash_seed", "setting", "hint"),
    [("42", "PYTHONHASHSEED=42", ""), ("random", "PYTHONHASHSEED=0", "set it for all runs)")],
)
def test_a_failure_says_how_to_replay_it(
    hash_seed: str, setting: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
    monkeypatch.setattr("sys.flags", SimpleNamespace(hash_randomization=1))
    line = note_of(failing(sleeps)).splitlines()[-1]
    assert setting in line
    assert line.endswith(hint)


def test_a_story_that_never_ends_says_where_it_waits() -> None:
    async def deeper() -> None:
        await asyncio.Event().wait()

    async def story(cluster: SimulatedKafka) -> None:
        await deeper()

    message = str(failing(story, limit_s=5))
    assert "did not end within 5 virtual seconds" in message
    assert "application waits at test_simulated_stories.py:" in message
    assert message.endswith("in deeper: await asyncio.Event().wait()")


async def starts_a_thread(_: SimulatedKafka) -> None:
    threading.Thread(target=print).start()


async def opens_a_socket(_: SimulatedKafka) -> None:
    socket.create_connection(("broker-1", 9092))


async def sleeps(_: SimulatedKafka) -> None:
    time.sleep(1)


async def watches_a_file(_: SimulatedKafka) -> None:
    asyncio.get_running_loop().add_reader(0, print)


async def uses_tls(_: SimulatedKafka) -> None:
    await asyncio.open_connection("broker-1", 9092, ssl=True)


async def nests(cluster: SimulatedKafka) -> None:
    simulate(nests)


async def misspells(cluster: SimulatedKafka) -> None:
    cluster.lose_response("Prodce")


def is_not_async(cluster: SimulatedKafka) -> None:
    pass


async def takes_nothing() -> None:
    pass


async def kills_itself(cluster: SimulatedKafka) -> None:
    cluster.application.kill()
    await asyncio.sleep(3)


async def calls_main(cluster: SimulatedKafka) -> None:
    cluster.process("worker", takes_nothing())  # type: ignore[arg-type]


async def has_a_main_that_is_not_async(cluster: SimulatedKafka) -> None:
    cluster.process("worker", print)  # type: ignore[arg-type]
    await asyncio.sleep(3)


async def asks_for_another_broker(cluster: SimulatedKafka) -> None:
    cluster.brokers[0].kill()


async def asks_for_another_partition(cluster: SimulatedKafka) -> None:
    await cluster.create_topic("orders")
    cluster.leader_of("orders", 4)


async def wants_another_fault(cluster: SimulatedKafka) -> None:
    async with cluster.random_faults("kil"):
        pass


async def cuts_nobody(cluster: SimulatedKafka) -> None:
    cluster.cut("broker-7")


async def loses_the_response_of_a_process(cluster: SimulatedKafka) -> None:
    cluster.lose_response("Produce", broker="application")


@pytest.mark.parametrize(
    ("story", "hint"),
    [
        (starts_a_thread, "use asyncio tasks"),
        (opens_a_socket, "such as aiokafka"),
        (sleeps, "use await asyncio.sleep()"),
        (watches_a_file, "application called loop.add_reader()"),
        (uses_tls, "TLS is not simulated"),
        (nests, "call it from a function that is not async"),
        (misspells, "did you mean 'Produce'?"),
        (is_not_async, "is not async"),
        (takes_nothing, "a story is an async function that takes the cluster"),
        (kills_itself, "the story ended its own process"),
        (calls_main, "process('worker', main): expected an async function"),
        (has_a_main_that_is_not_async, "is not async"),
        (asks_for_another_broker, "there is no broker 0; known are 1"),
        (asks_for_another_partition, "orders has 1 partition"),
        (wants_another_fault, "unknown faults: kil; expected kill, stop"),
        (cuts_nobody, "expected a broker or process or its name, got 'broker-7'; known are broker-1, application"),
        (loses_the_response_of_a_process, "expected a broker or its name, got 'application'; known are broker-1"),
    ],
)
def test_what_cannot_be_simulated_is_said(story: Story, hint: str) -> None:
    assert hint in str(failing(story))


def test_afterwards_everything_is_as_before() -> None:
    before = time.monotonic, time.sleep, threading.Thread.start, socket.getaddrinfo, "connect" in vars(socket.socket)
    failing(starts_a_thread)
    assert before == (
        *(time.monotonic, time.sleep, threading.Thread.start, socket.getaddrinfo),
        "connect" in vars(socket.socket),
    )


def test_other_threads_live_in_real_time() -> None:
    asked, clock = threading.Event(), time.monotonic
    times: list[float] = []

    def look() -> None:
        asked.wait()
        times.append(time.monotonic())

    thread = threading.Thread(target=look)
    began = clock()
    thread.start()

    async def story(cluster: SimulatedKafka) -> None:
        asked.set()
        thread.join()

    simulate(story, brokers=1)
    assert began <= times[0] <= clock()


def test_work_for_threads_is_done_without_any() -> None:
    async def story(cluster: SimulatedKafka) -> bool:
        return await asyncio.to_thread(threading.current_thread) is threading.current_thread()

    assert simulate(story, brokers=1)


def test_an_exception_out_of_a_process_fails_the_story() -> None:
    async def main() -> None:
        raise ValueError("broken")

    async def story(cluster: SimulatedKafka) -> None:
        cluster.process("worker", main)
        await asyncio.sleep(1)

    error = failing(story, ValueError)
    assert error.__notes__[0] == "It ended the simulated process 'worker'."


def test_a_process_is_killed_paused_and_stopped_as_the_kernel_would() -> None:
    async def story(cluster: SimulatedKafka) -> list[str]:
        ticks: list[str] = []

        async def main() -> None:
            stopped = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
            try:
                while not stopped.is_set():
                    ticks.append("tick")
                    await asyncio.sleep(1)
            finally:
                ticks.append("end")

        async def seconds(count: float) -> list[str]:
            ticks.clear()
            await asyncio.sleep(count)
            return list(ticks)

        worker = cluster.process("worker", main)
        assert await seconds(2.5) == ["tick"] * 3
        worker.pause()
        assert await seconds(5) == []
        worker.resume()
        assert await seconds(2) == ["tick"] * 2
        worker.kill()
        assert not worker.is_running
        assert await seconds(5) == []
        worker.start()
        await asyncio.sleep(0.5)
        worker.stop()
        return await seconds(2)

    assert simulate(story, brokers=1) == ["end"]


def test_links_are_cut_in_one_direction_and_healed() -> None:
    async def story(cluster: SimulatedKafka) -> None:
        received: list[bytes] = []

        async def serve() -> None:
            async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                while data := await reader.readline():
                    received.append(data)
                    writer.write(data)

            await asyncio.start_server(handle, "server", 80)
            await asyncio.Event().wait()

        server, client = cluster.process("server", serve), cluster.application
        await asyncio.sleep(0.1)
        reader, writer = await asyncio.open_connection("server", 80)

        async def echoes(text: bytes) -> bool:
            writer.write(text)
            try:
                return await asyncio.wait_for(reader.readline(), 2) == text
            except TimeoutError:
                return False

        assert await echoes(b"one\n")
        cluster.cut_link(server, client)
        assert not await echoes(b"two\n")
        assert received == [b"one\n", b"two\n"]
        cluster.heal()
        assert await reader.readline() == b"two\n"
        cluster.cut(server)
        assert not await echoes(b"three\n")
        assert received == [b"one\n", b"two\n"]

    simulate(story, brokers=1)


def test_a_cluster_names_its_leaders_and_survives_the_loss_of_them() -> None:
    async def story(cluster: SimulatedKafka) -> None:
        with pytest.raises(SimulationError, match="does not exist yet"):
            cluster.leader_of("orders")
        await cluster.create_topic("orders", 2, config={"retention.ms": 1000})
        with pytest.raises(KafkaError, match="exists"):
            await cluster.create_topic("orders")
        leader, controller = cluster.leader_of("orders", 1), cluster.controller
        leader.lose_power()
        await cluster.until(lambda: cluster.leader_of("orders", 1) is not leader)
        leader.start()
        with pytest.raises(SimulationError, match="already running"):
            leader.start()
        await cluster.until_ready()
        cluster.stop_store()
        await asyncio.sleep(5)
        cluster.heal()
        controller.kill()
        await cluster.until(lambda: cluster.controller is not controller)

    simulate(story)


def test_random_faults_end_with_a_healthy_cluster() -> None:
    async def story(cluster: SimulatedKafka) -> list[str]:
        await cluster.create_topic("orders")
        async with cluster.random_faults():
            await asyncio.sleep(10)
        assert all(broker.is_serving for broker in cluster.brokers.values())
        return [line.split(maxsplit=1)[1] for line in cluster.timeline()]

    first, again, other = simulate(story, seeds=(1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"brokers": 0}, "at least one broker"),
        ({"seeds": ()}, "nothing would run"),
        ({"seeds": 5}, "for one use seed=5"),
        ({"limit_s": 0}, "more than 0 virtual seconds"),
    ],
)
def test_options_that_would_test_nothing_are_refused(options: dict[str, Any], hint: str) -> None:
    async def story(kafka: SimulatedKafka) -> None:
        pass

    with pytest.raises(SimulationError, match=hint):
        simulate(story, **options)


def test_a_run_that_did_not_begin_has_no_timeline() -> None:
    async def story(kafka: SimulatedKafka) -> None:
        pass

    with pytest.raises(MoldauError, match="retention") as caught:
        simulate(story, config={"log.retention.hour": 1})
    assert not getattr(caught.value, "__notes__", None)


def test_until_awaits_an_async_condition() -> None:
    async def story(cluster: SimulatedKafka) -> float:
        async def is_late() -> bool:
            await asyncio.sleep(0.1)
            return cluster.now > 3

        await cluster.until(is_late)
        return cluster.now

    assert 3 < simulate(story, brokers=1) < 4


def test_names_are_taken_for_brokers_and_processes() -> None:
    async def story(cluster: SimulatedKafka) -> list[str]:
        cluster.lose_response("Produce", broker="broker-1", client="application")
        cluster.slow("broker-1", 0.5)
        cluster.cut("application", "broker-2")
        cluster.cut_link("broker-1", cluster.application)
        cluster.cut("broker-1")
        return [line.split(maxsplit=1)[1] for line in cluster.timeline()[-4:]]

    assert simulate(story, brokers=2) == [
        "broker-1       has a slow network: up to 0.5 s",
        "application    is cut off from broker-2",
        "broker-1       does not reach application any more",
        "broker-1       is cut off from everybody",
    ]


@pytest.mark.parametrize("is_held", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_a_task_that_fails_unnoticed_is_reported(is_held: bool, fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    held: list[asyncio.Task[None]] = []

    async def work() -> None:
        raise ValueError("out of paper")

    async def story(cluster: SimulatedKafka) -> None:
        task = asyncio.create_task(work())
        if is_held:
            held.append(task)
        del task
        await asyncio.sleep(1)
        for _ in range(NOTES_MAX if is_held else 50):
            cluster.note("goes on")
        assert not fails

    told = "a task ended with ValueError: out of paper (test_simulated_stories.py:"
    if fails:
        (line,) = [line for line in note_of(failing(story, AssertionError)).splitlines() if told in line]
        when, who, text = line.split(maxsplit=2)
        assert (float(when) < 1, who) == (True, "application")
        assert text.endswith(" in work), and nobody awaited it")
    else:
        simulate(story, brokers=1)
        assert told in caplog.text


def test_tasks_whose_errors_are_handled_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        raise ValueError("handled")

    async def story(_: SimulatedKafka) -> None:
        assert isinstance((await asyncio.gather(work(), return_exceptions=True))[0], ValueError)
        task = asyncio.create_task(work())
        await asyncio.wait([task])
        with pytest.raises(ValueError, match="handled"):
            await task
        raise LookupError

    assert "ValueError" not in note_of(failing(story, LookupError))
    assert not caplog.records


@pytest.mark.parametrize("clock", [time.monotonic, time.time, None])
def test_a_loop_that_waits_for_the_clock_without_await_fails(
    clock: Callable[[], float] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("moldau.testing.simulation.loop.CLOCK_READS_MAX", 10_000)

    async def story(_: SimulatedKafka) -> None:
        read = asyncio.get_running_loop().time if clock is None else getattr(time, clock.__name__)
        end = read() + 5
        while read() < end:
            pass

    message = str(failing(story))
    assert "has read the clock 10,000 times without an await" in message
    assert message.startswith("test_simulated_stories.py:")


def test_the_start_of_a_healthy_cluster_looks_healthy() -> None:
    async def story(cluster: SimulatedKafka) -> str:
        return "".join(cluster.timeline())

    assert not [text for text in simulate(story, seeds=range(3)) if "lost contact" in text]
