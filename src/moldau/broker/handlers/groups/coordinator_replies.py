"""Replies of a coordinator: available at once, later, or an error."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from moldau.broker.turns import Work
from moldau.errors import KafkaError


def answer(ask: Callable[[], Any], respond: Callable[[Any], Any], refuse: Callable[[KafkaError], Any]) -> Any:
    """The response, or an awaitable of it while the coordinator's reply is not there yet."""
    try:
        reply = ask()
    except KafkaError as refusal:
        return refuse(refusal)
    if not isinstance(reply, asyncio.Future):
        return respond(reply)

    async def later() -> Any:
        try:
            return respond(await reply)
        except KafkaError as refusal:
            return refuse(refusal)

    return later()


async def reply_of(reply: Any) -> Any:
    """For handlers that wait anyway."""
    return await reply if inspect.isawaitable(reply) else reply


def wait_for_reply(reply: Any) -> Work[Any]:
    """For handlers that take turns."""
    return (yield reply) if isinstance(reply, asyncio.Future) else reply
