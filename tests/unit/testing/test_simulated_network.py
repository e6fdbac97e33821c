"""Sockets, processes and clocks of a simulated world, as asyncio programs see them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from moldau.testing.simulation.host import Host
from moldau.testing.simulation.loop import MS, SECOND, StalledError, Timeout, World
from moldau.testing.simulation.network import Network
from moldau.testing.simulation.transport import WINDOW_BYTES

PORT = 7


class Lab:
    """A server that answers each line with the same line, and a client."""

    def __init__(self) -> None:
        self.world = World("lab")
        self.network = Network(self.world)
        self.server = Host(self.world, self.network, "server")
        self.client = Host(self.world, self.network, "client")
        self.client.start_process()
        self.start_server()

    def start_server(self) -> None:
        self.server.start_process().create_task(asyncio.start_server(self._serve, "server", PORT))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    def run(self, work: Coroutine[Any, Any, Any], limit_s: int = 200) -> Any:
        """On the client's host, to its end."""
        task = self.begin(work)
        self.world.run(task.done, self.world.now_us + limit_s * SECOND)
        return task.result()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        assert self.client.loop is not None
        return self.client.loop.create_task(work)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("server", PORT)

    async def say(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], line: bytes) -> bytes:
        reader, writer = streams
        writer.write(line)
        return await reader.readline()


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    lab.world.run_for(MS)
    yield lab
    lab.world.close()


def test_lines_arrive_in_order_however_they_are_cut(lab: Lab) -> None:
    async def work() -> None:
        streams = await lab.connect()
        lines = [b"%d " % number * number + b"\n" for number in range(200)]
        for line in lines:
            streams[1].write(line)
        assert [await streams[0].readline() for _ in lines] == lines

    lab.run(work())


def test_a_port_without_a_listener_refuses(lab: Lab) -> None:
    with pytest.raises(ConnectionRefusedError):
        lab.run(asyncio.open_connection("server", PORT + 1))
    lab.server.kill()
    with pytest.raises(ConnectionRefusedError):
        lab.run(asyncio.open_connection("server", PORT))


def test_a_dead_process_ends_its_connections_and_runs_nothing_more(lab: Lab) -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            ended.append("finally")

    assert lab.server.loop is not None
    lab.server.loop.create_task(forever())
    streams = lab.run(lab.connect())
    lab.world.run_for(MS)
    lab.server.kill()

    async def read() -> bytes:
        try:
            rest: bytes = await streams[0].read()
            return rest
        except ConnectionResetError:
            return b""

    assert lab.run(read(), limit_s=1) == b""
    lab.world.run_for(4_000 * SECOND)
    assert not ended


def test_a_machine_without_power_is_silent_and_resets_when_it_is_back(lab: Lab) -> None:
    streams = lab.run(lab.connect())
    lab.server.lose_power()
    asking = lab.begin(lab.say(streams, b"hello\n"))
    lab.world.run_for(60 * SECOND)
    assert not asking.done()
    with pytest.raises(Timeout):
        lab.run(lab.connect(), limit_s=60)
    lab.start_server()
    lab.world.run(asking.done, lab.world.now_us + 10 * SECOND)
    with pytest.raises(ConnectionResetError):
        asking.result()


@pytest.mark.parametrize("direction", ["there", "back"])
def test_what_a_cut_link_holds_back_arrives_when_it_is_whole(lab: Lab, direction: str) -> None:
    hosts = (lab.client, lab.server) if direction == "there" else (lab.server, lab.client)
    streams = lab.run(lab.connect())
    lab.network.cut(*hosts)
    asking = lab.begin(lab.say(streams, b"hello\n"))
    lab.world.run_for(30 * SECOND)
    assert not asking.done()
    lab.network.mend(*hosts)
    lab.world.run(asking.done, lab.world.now_us + SECOND)
    assert asking.result() == b"hello\n"


def test_a_paused_process_goes_on_where_it_was(lab: Lab) -> None:
    streams = lab.run(lab.connect())
    lab.server.pause()
    asking = lab.begin(lab.say(streams, b"hello\n"))
    late = lab.begin(lab.connect())  # its kernel takes the connection
    lab.world.run_for(30 * SECOND)
    assert late.done()
    assert not asking.done()
    lab.server.resume()
    lab.world.run(asking.done, lab.world.now_us + SECOND)
    assert asking.result() == b"hello\n"


def test_a_writer_waits_for_a_reader_that_does_not_read(lab: Lab) -> None:
    async def work() -> None:
        reader, writer = await lab.connect()
        reading = asyncio.ensure_future(reader.readexactly(4 * WINDOW_BYTES))
        lab.server.pause()
        writer.write((b"x" * 1023 + b"\n") * (4 * WINDOW_BYTES // 1024))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(writer.drain(), 10)
        lab.server.resume()
        await asyncio.wait_for(writer.drain(), 10)
        await asyncio.wait_for(reading, 10)

    lab.run(work())


def test_somebody_who_sets_the_clock_moves_no_deadline(lab: Lab) -> None:
    async def work() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        wall_ms, began_s = lab.client.wall_clock_ms(), loop.time()
        lab.client.jump_clock(-3_600 * SECOND)
        await asyncio.sleep(5)
        return lab.client.wall_clock_ms() - wall_ms, loop.time() - began_s

    wall_ms, passed_s = lab.run(work())
    assert passed_s == pytest.approx(5, abs=0.1)
    assert wall_ms == pytest.approx(5_000 - 3_600_000, abs=100)


def test_a_program_that_waits_for_nothing_is_told_so() -> None:
    world = World(1)
    with pytest.raises(StalledError):
        world.run(lambda: False)
