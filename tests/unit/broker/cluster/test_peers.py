"""What brokers ask each other: answers that are none, and the one proof that a process is dead."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from moldau.broker.cluster.peers import Peer, refuses
from moldau.errors import ErrorCode, KafkaError
from moldau.wire.apis import ApiKey

BOTH = ("127.0.0.1", "127.0.0.2")


@pytest.fixture
async def loop_with_a_name_for_both(monkeypatch: pytest.MonkeyPatch) -> asyncio.AbstractEventLoop:
    """`both.test` stands for two addresses of this machine."""
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def resolve_both(host: Any, port: Any, **hints: Any) -> Any:
        names = BOTH if host == "both.test" else (host,)
        return [found for name in names for found in await resolve(name, port, **hints)]

    monkeypatch.setattr(loop, "getaddrinfo", resolve_both)
    return loop


async def test_what_answers_with_nonsense_is_no_broker_and_may_be_one_later() -> None:
    closed = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readexactly(12)
        writer.write(struct.pack(">i", 7) + head[8:12] + b"\xff\xff\xff")
        while await reader.read(1000):
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        peer = Peer(asyncio.get_running_loop(), server.sockets[0].getsockname(), "broker-1")
        with pytest.raises(KafkaError) as refused:
            await peer.ask(ApiKey.BROKER_HEARTBEAT, lambda schema: None)
        assert refused.value.code is ErrorCode.NETWORK_EXCEPTION
        async with asyncio.timeout(10):
            await closed.wait()
        peer.close()


async def test_a_process_is_dead_when_all_its_addresses_say_so(
    loop_with_a_name_for_both: asyncio.AbstractEventLoop,
) -> None:
    with socket.socket() as bound:  # bound, and not listening
        bound.bind((BOTH[0], 0))
        assert await refuses(loop_with_a_name_for_both, ("both.test", bound.getsockname()[1]))


async def test_not_while_it_listens_at_one_of_them(loop_with_a_name_for_both: asyncio.AbstractEventLoop) -> None:
    with socket.create_server((BOTH[1], 0)) as listening:
        assert not await refuses(loop_with_a_name_for_both, ("both.test", listening.getsockname()[1]))


async def test_a_name_that_nobody_knows_proves_nothing() -> None:
    assert not await refuses(asyncio.get_running_loop(), ("nobody.invalid", 9092))
