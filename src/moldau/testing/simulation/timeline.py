"""Log messages in the timeline of a simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.log_fields import fields_of
from moldau.testing.simulation.loop import World


class TimelineHandler(logging.Handler):
    """Adds what is logged to the timeline, with the host whose code runs."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        host = self.world.current
        extra = " ".join(f"{key}={value}" for key, value in fields_of(record).items())
        text = " ".join(filter(None, (record.getMessage(), extra)))
        self.world.note(host.name if host is not None else record.name, "{}", text)


@contextmanager
def broker_logs_to(handler: logging.Handler) -> Iterator[None]:
    """The logs of the brokers go to that handler and nowhere else."""
    logger = logging.getLogger("moldau")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
