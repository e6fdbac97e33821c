"""What brokers ask each other: the one proof that a process is dead."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from moldau.broker.peers import refuses

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
