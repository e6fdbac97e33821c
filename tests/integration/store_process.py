"""A broker's view of a store of metadata, in a process of its own that tests can stop and kill.

Run with the place of a store and a node id. Commands come as lines of JSON, answers and news go out the same way.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moldau.errors import FencedControllerError
from moldau.metadata.image import MetadataImage
from moldau.metadata.records import ConfigRecord, Record
from moldau.metadata.stores.local_store import LocalStore
from moldau.metadata.stores.shared_store import SharedStore
from moldau.metadata.stores.store import Candidate, ControllerTerm, MetadataStore
from moldau.metadata.stores.zookeeper_store import ZooKeeperStore
from tests.integration.waiting import eventually

SESSION_TIMEOUT_MS = 1_500
RESOURCE = ("topic", "t")


def make_store(place: str, **options: Any) -> MetadataStore:
    kind, _, where = place.partition(":")
    if kind == "local":
        return LocalStore(Path(where) / "metadata.jsonl", **options)
    options.setdefault("session_timeout_ms", SESSION_TIMEOUT_MS)
    return SharedStore(where, **options) if kind == "shared" else ZooKeeperStore(where, **options)


def facts(*keys: str) -> list[Record]:
    """Records that a test finds again: `keys_of` an image with them has the keys."""
    return [ConfigRecord(*RESOURCE, key, "x" * 40) for key in keys]


def keys_of(image: MetadataImage) -> set[str]:
    return set(image.configs.get(RESOURCE, ()))


class Member:
    """One candidate in this process, what it was told, and the image where it is the controller."""

    def __init__(self, place: str, node_id: int, **options: int) -> None:
        self.node_id = node_id
        self.told = self.news()
        self.epoch = -1
        self.image = MetadataImage()
        self.store = make_store(place, **options)
        self.store.open()
        self.store.campaign(Candidate(node_id, "localhost", 9000 + node_id), self.told.append)

    news: Callable[[], list[ControllerTerm | None]] = list

    @property
    def term(self) -> ControllerTerm | None:
        return self.told[-1]

    @property
    def leads(self) -> bool:
        return self.term is not None and self.term.node_id == self.node_id

    def load(self) -> MetadataImage:
        assert self.term is not None
        self.epoch = self.term.epoch
        self.image = self.store.load(self.epoch)
        return self.image

    def append(self, *keys: str) -> None:
        records = facts(*keys)
        image = self.image.apply(records)
        self.store.append(self.epoch, records, image)
        self.image = image


class MemberProcess:
    """A `Member` in a process of its own."""

    def __init__(self, place: str, node_id: int, **options: int) -> None:
        self.node_id = node_id
        self.told: list[ControllerTerm | None] = []
        self.acked: list[str] = []
        """Keys whose append was acknowledged."""
        self.answers: list[dict[str, Any]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.store_process", place, str(node_id), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def leads(self) -> bool:
        return bool(self.told) and self.told[-1] is not None and self.told[-1].node_id == self.node_id

    def ask(self, *command: str) -> dict[str, Any]:
        seen = len(self.answers)
        self.tell(*command)
        eventually(lambda: len(self.answers) > seen, f"an answer to {command[0]}")
        return self.answers[seen]

    def tell(self, *command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            # Killed in the middle of a line, a process has not said it.
            news = json.loads(line) if line.endswith("\n") else {}
            if "told" in news:
                self.told.append(ControllerTerm(*news["told"]) if news["told"] else None)
            elif "acked" in news:
                self.acked += news["acked"]
            elif news:
                self.answers.append(news)


def _say(**news: object) -> None:
    # One write: lines of two threads must not mix.
    os.write(1, json.dumps(news).encode() + b"\n")


class _Told(list[ControllerTerm | None]):
    def append(self, term: ControllerTerm | None) -> None:
        super().append(term)
        _say(told=term)


class _SayingMember(Member):
    news = _Told

    def append_until_refused(self, size: int) -> None:
        number = 0
        while True:
            number += 1
            keys = [f"{self.node_id}-{number}-{part}" for part in range(size)]
            self.append(*keys)
            _say(acked=keys)

    def run(self, command: str, *args: str) -> None:
        match command:
            case "load":
                _say(keys=sorted(keys_of(self.load())))
            case "append":
                self.append(*args)
                _say(done=True)
            case "append-until-refused":
                self.append_until_refused(int(args[0]))


def main() -> None:
    place, node_id, options = sys.argv[1:]
    member = _SayingMember(place, int(node_id), **json.loads(options))
    for line in sys.stdin:
        try:
            member.run(*json.loads(line))
        except FencedControllerError as error:
            _say(deposed=error.message)
        except Exception as error:
            _say(error=repr(error))


if __name__ == "__main__":
    main()
