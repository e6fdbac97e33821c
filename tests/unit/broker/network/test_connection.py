"""The rules of a connection, over a real socket, with a dispatcher that the test steers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from moldau.broker.network.byte_budget import ByteBudget
from moldau.broker.network.client_connection import (
    CLOSE_GRACE_S,
    FIRST_BUFFER_BYTES,
    FRAME_GRACE_S,
    PIPELINE_MAX,
    Answer,
    ClientConnection,
    Pipelined,
)
from moldau.broker.network.open_connections import OpenConnections
from moldau.config.broker import BrokerConfig
from moldau.errors import ProtocolError


def frame(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


class Steered:
    """A dispatcher whose answers come from the test."""

    def __init__(self, answer: Callable[[bytes], Answer]) -> None:
        self.answer = answer
        self.seen: list[bytes] = []
        self.connections: list[ClientConnection] = []
        self.gone = asyncio.Event()

    def connected(self, connection: ClientConnection) -> bool:
        self.connections.append(connection)
        return True

    def disconnected(self, connection: ClientConnection) -> None:
        self.gone.set()

    def handle(self, connection: ClientConnection, view: memoryview) -> Answer:
        self.seen.append(bytes(view))
        return self.answer(self.seen[-1])


Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def served(
    dispatch: Steered,
    *,
    request_max_bytes: int = 1 << 20,
    budget: ByteBudget | None = None,
    send_budget: ByteBudget | None = None,
    peers: int = 1,
) -> AsyncIterator[list[Peer]]:
    loop = asyncio.get_running_loop()
    shared = budget or ByteBudget(1 << 30)
    server = await loop.create_server(
        lambda: ClientConnection(
            dispatch,
            "PLAINTEXT",
            loop=loop,
            request_max_bytes=request_max_bytes,
            budget=shared,
            send_budget=send_budget or ByteBudget(1 << 30),
        ),
        "127.0.0.1",
        0,
    )
    port = server.sockets[0].getsockname()[1]
    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(peers)]
    try:
        yield opened
    finally:
        for _, writer in opened:
            writer.close()
        server.close()


async def read_frames(reader: asyncio.StreamReader, count: int) -> list[bytes]:
    frames = []
    for _ in range(count):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        frames.append(await reader.readexactly(size))
    return frames


async def test_frames_cut_at_any_byte_arrive_whole() -> None:
    dispatch = Steered(frame)
    async with served(dispatch) as [(reader, writer)]:
        data = frame(b"one") + frame(b"two") + frame(b"x" * 300)
        for position in range(len(data)):
            writer.write(data[position : position + 1])
            await writer.drain()
        assert await read_frames(reader, 3) == [b"one", b"two", b"x" * 300]


async def test_many_frames_in_one_write_are_answered_in_order() -> None:
    dispatch = Steered(frame)
    async with served(dispatch) as [(reader, writer)]:
        payloads = [b"%d" % number for number in range(5000)]
        writer.write(b"".join(map(frame, payloads)))
        assert await read_frames(reader, 5000) == payloads


async def test_a_large_frame_grows_the_buffer_and_gives_it_back_when_idle() -> None:
    budget = ByteBudget(1 << 30)
    dispatch = Steered(lambda payload: frame(b"%d" % len(payload)))
    async with served(dispatch, budget=budget) as [(reader, writer)]:
        writer.write(frame(b"x" * 900_000) + frame(b"y"))
        assert await read_frames(reader, 2) == [b"900000", b"1"]
        assert budget.used >= 900_000 - FIRST_BUFFER_BYTES
        dispatch.connections[0].shrink()
        assert budget.used == 0
        writer.write(frame(b"z" * 30_000))
        assert await read_frames(reader, 1) == [b"30000"]


async def test_a_length_prefix_alone_buys_no_memory() -> None:
    budget = ByteBudget(1 << 30)
    dispatch = Steered(frame)
    async with served(dispatch, budget=budget, request_max_bytes=1 << 30) as [(reader, writer)]:
        writer.write(frame(b"hello") + struct.pack(">i", (1 << 30) - 1) + b"begin")
        assert await read_frames(reader, 1) == [b"hello"]
        assert dispatch.connections[0].buffer_bytes == FIRST_BUFFER_BYTES


@pytest.mark.parametrize("size", [0, -1, -(2**31), 2**31 - 1, (1 << 20) + 1])
async def test_an_impossible_length_closes_the_connection(size: int) -> None:
    dispatch = Steered(frame)
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"good") + struct.pack(">i", size))
        assert await read_frames(reader, 1) == [b"good"]
        assert await reader.read() == b""


async def test_a_pipelined_answer_keeps_its_place_and_lets_the_next_request_start() -> None:
    loop = asyncio.get_running_loop()
    slow: asyncio.Future[bytes | list[bytes | memoryview]] = loop.create_future()
    dispatch = Steered(lambda payload: Pipelined(slow) if payload == b"slow" else frame(payload))
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"slow") + frame(b"fast"))
        while len(dispatch.seen) < 2:
            await asyncio.sleep(0)
        slow.set_result(frame(b"slow"))
        assert await read_frames(reader, 2) == [b"slow", b"fast"]


async def test_an_answer_that_is_settled_while_requests_are_handled_keeps_its_place() -> None:
    slow = Pipelined(asyncio.get_running_loop().create_future())

    def answer(payload: bytes) -> Answer:
        if payload == b"slow":
            return slow
        if payload == b"settles":
            slow.settle(frame(b"slow"))
        return frame(payload)

    async with served(Steered(answer)) as [(reader, writer)]:
        writer.write(frame(b"first") + frame(b"slow") + frame(b"settles") + frame(b"last"))
        assert await read_frames(reader, 4) == [b"first", b"slow", b"settles", b"last"]


async def test_a_settled_answer_leaves_at_once() -> None:
    slow = Pipelined(asyncio.get_running_loop().create_future())
    dispatch = Steered(lambda payload: slow)
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"slow"))
        while not dispatch.seen:
            await asyncio.sleep(0)
        slow.settle(frame(b"answer"))
        slow.settle(frame(b"another"))
        assert await read_frames(reader, 1) == [b"answer"]


async def test_a_held_answer_holds_the_requests_behind_it() -> None:
    loop = asyncio.get_running_loop()
    held: asyncio.Future[bytes | list[bytes | memoryview] | None] = loop.create_future()
    dispatch = Steered(lambda payload: held if payload == b"held" else frame(payload))
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"held") + frame(b"next"))
        while not dispatch.seen:
            await asyncio.sleep(0)
        writer.write(frame(b"last"))
        await writer.drain()
        assert dispatch.seen == [b"held"]
        held.set_result(frame(b"held"))
        assert await read_frames(reader, 3) == [b"held", b"next", b"last"]


async def test_requests_that_wait_for_the_disk_are_limited() -> None:
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[bytes | list[bytes | memoryview]]] = []

    def answer(payload: bytes) -> Answer:
        futures.append(loop.create_future())
        return Pipelined(futures[-1])

    dispatch = Steered(answer)
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"x") * (PIPELINE_MAX + 10))
        while len(futures) < PIPELINE_MAX:
            await asyncio.sleep(0)
        assert len(futures) == PIPELINE_MAX
        futures[0].set_result(frame(b"0"))
        assert await read_frames(reader, 1) == [b"0"]
        while len(futures) < PIPELINE_MAX + 1:
            await asyncio.sleep(0)


async def test_a_client_that_does_not_read_is_not_read_from() -> None:
    answer = frame(b"a" * 500_000)
    dispatch = Steered(lambda payload: answer)
    async with served(dispatch) as [(reader, writer)]:
        for _ in range(1000):
            writer.write(frame(b"r" * 1000))
        handled = -1
        while handled != len(dispatch.seen):
            handled = len(dispatch.seen)
            for _ in range(50):
                await asyncio.sleep(0)
        assert handled < 100
        assert len(await read_frames(reader, 1000)) == 1000


async def test_an_answer_of_many_pieces_arrives_as_one_frame() -> None:
    dispatch = Steered(lambda payload: [struct.pack(">i", 6), b"abc", memoryview(b"def")])
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"x"))
        assert await read_frames(reader, 1) == [b"abcdef"]


async def test_a_protocol_error_closes_this_connection_after_the_answers_before_it() -> None:
    def answer(payload: bytes) -> Answer:
        if payload == b"bad":
            raise ProtocolError("no such thing")
        return frame(payload)

    dispatch = Steered(answer)
    async with served(dispatch, peers=2) as [(reader, writer), (other_reader, other_writer)]:
        writer.write(frame(b"good") + frame(b"bad") + frame(b"never"))
        assert await reader.read() == frame(b"good")
        other_writer.write(frame(b"still here"))
        assert await read_frames(other_reader, 1) == [b"still here"]
        assert b"never" not in dispatch.seen


async def test_no_budget_means_waiting_not_failing() -> None:
    budget = ByteBudget(400_000)
    loop = asyncio.get_running_loop()
    held: asyncio.Future[bytes | list[bytes | memoryview] | None] = loop.create_future()
    dispatch = Steered(lambda payload: held if payload[:1] == b"h" else frame(b"%d" % len(payload)))
    async with served(dispatch, budget=budget, peers=2) as [(first, first_writer), (second, second_writer)]:
        first_writer.write(frame(b"h" * 500_000))
        while not dispatch.seen:
            await asyncio.sleep(0)
        second_writer.write(frame(b"s" * 500_000))
        for _ in range(200):
            await asyncio.sleep(0)
        assert len(dispatch.seen) == 1
        held.set_result(frame(b"done"))
        assert await read_frames(first, 1) == [b"done"]
        first_writer.close()
        assert await read_frames(second, 1) == [b"500000"]


async def test_slow_silent_and_idle_connections_are_overdue() -> None:
    dispatch = Steered(frame)
    async with served(dispatch, peers=2) as [(reader, writer), _silent]:
        while len(dispatch.connections) < 2:
            await asyncio.sleep(0)
        writer.write(frame(b"hello") + struct.pack(">i", 1000) + b"slow")
        assert await read_frames(reader, 1) == [b"hello"]
        connections = sorted(dispatch.connections, key=lambda connection: -connection.requests)
        now_s = asyncio.get_running_loop().time()
        assert [c.overdue(now_s + 1, 600) for c in connections] == [None, None]
        later_s = now_s + FRAME_GRACE_S + 1
        assert [c.overdue(later_s, 600) for c in connections] == [
            "request arrived too slowly",
            "no request after connecting",
        ]


async def test_an_idle_connection_is_overdue_and_a_waiting_one_is_not() -> None:
    loop = asyncio.get_running_loop()
    held: asyncio.Future[bytes | list[bytes | memoryview] | None] = loop.create_future()
    dispatch = Steered(lambda payload: held if payload == b"held" else frame(payload))
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"hello"))
        assert await read_frames(reader, 1) == [b"hello"]
        assert dispatch.connections[0].overdue(loop.time() + 700, 600) == "idle"
        writer.write(frame(b"held"))
        while not dispatch.connections[0].is_busy:
            await asyncio.sleep(0)
        assert dispatch.connections[0].overdue(loop.time() + 700, 600) is None
        held.set_result(frame(b"held"))
        assert await read_frames(reader, 1) == [b"held"]


async def test_a_client_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    loop = asyncio.get_running_loop()
    held: asyncio.Future[bytes | list[bytes | memoryview] | None] = loop.create_future()
    dispatch = Steered(lambda payload: held)
    async with served(dispatch) as [(_reader, writer)]:
        writer.write(frame(b"held"))
        while not dispatch.seen:
            await asyncio.sleep(0)
        writer.close()
        await dispatch.gone.wait()
        while not held.cancelled():
            await asyncio.sleep(0)


async def test_a_request_begins_although_its_client_hangs_up_at_once() -> None:
    begun = asyncio.Event()

    async def begin(payload: bytes) -> bytes:
        begun.set()
        return frame(payload)

    def hang_up_and_begin(payload: bytes) -> Answer:
        """What the loop does next is to hear of the end of the connection; then the request would begin."""
        asyncio.get_running_loop().call_soon(dispatch.connections[0].connection_lost, None)
        return begin(payload)

    dispatch = Steered(hang_up_and_begin)
    async with served(dispatch) as [(_, writer)]:
        writer.write(frame(b"commit"))
        await asyncio.wait_for(dispatch.gone.wait(), 10)
        await asyncio.wait_for(begun.wait(), 10)


async def test_an_unexpected_failure_of_an_answer_closes_its_connection() -> None:
    loop = asyncio.get_running_loop()
    held: asyncio.Future[bytes | list[bytes | memoryview] | None] = loop.create_future()
    dispatch = Steered(lambda payload: held)
    async with served(dispatch) as [(reader, writer)]:
        writer.write(frame(b"held"))
        while not dispatch.seen:
            await asyncio.sleep(0)
        held.set_exception(RuntimeError("a bug"))
        assert await reader.read() == b""


async def test_answers_that_nobody_reads_are_charged_until_they_are_sent() -> None:
    sending = ByteBudget(1 << 30)
    dispatch = Steered(lambda payload: frame(b"a" * 8_000_000))
    async with served(dispatch, send_budget=sending) as [(reader, writer)]:
        writer.write(frame(b"x"))
        while not sending.used:
            await asyncio.sleep(0)
        assert sending.left < 1 << 30
        assert len((await read_frames(reader, 1))[0]) == 8_000_000
        while sending.used:
            await asyncio.sleep(0)


async def test_two_half_arrived_requests_never_wait_for_each_other() -> None:
    budget = ByteBudget(1 << 20)
    dispatch = Steered(lambda payload: frame(b"%d" % len(payload)))
    async with served(dispatch, budget=budget, peers=3) as peers:
        data = frame(b"x" * 900_000)
        for _, writer in peers[:2]:
            writer.write(data[:600_000])
            await writer.drain()
        peers[2][1].write(frame(b"y" * 30_000))
        for _, writer in peers[:2]:
            writer.write(data[600_000:])
        for (reader, _), size in zip(peers, (b"900000", b"900000", b"30000"), strict=True):
            assert await asyncio.wait_for(read_frames(reader, 1), 10) == [size]


async def test_a_closed_connection_that_is_not_read_is_cut_off() -> None:
    dispatch = Steered(lambda payload: frame(b"a" * 8_000_000))
    config, _ = BrokerConfig.from_properties({})
    connections = OpenConnections(config)
    async with served(dispatch, send_budget=connections.send_budget) as [(_reader, writer)]:
        writer.write(frame(b"x"))
        while not connections.send_budget.used:
            await asyncio.sleep(0)
        (deaf,) = dispatch.connections
        assert connections.admit(deaf)
        deaf.close("idle")
        connections.sweep(asyncio.get_running_loop().time() + CLOSE_GRACE_S + 1)
        await dispatch.gone.wait()
        assert connections.send_budget.used == 0
