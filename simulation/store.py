"""The metadata store: who is the controller, and the one line of records. Stands for ZooKeeper or a shared folder.

It is asked over the network, so requests and answers can be late or lost; an append whose answer was lost is asked for
again by `StoreClient` until its outcome is known, as a store's client has to. What it refuses now and then, nothing is
kept of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from moldau.metadata.image import MetadataImage
from moldau.metadata.records import Record
from simulation.checker import Checker
from simulation.network import Answer, Failure, Host, Network
from simulation.world import MS, Process, World

SESSION_US = 1_200 * MS
PING_US = 300 * MS
ANSWER_TIMEOUT_US = 400 * MS


class Elected(NamedTuple):
    epoch: int
    node_id: int


class Refusal(NamedTuple):
    """Of an append or a load."""

    is_deposed: bool


class Append(NamedTuple):
    epoch: int
    base_version: int
    records: Sequence[Record]


class Store(Host):
    def __init__(self, world: World, checker: Checker) -> None:
        super().__init__(world, "store")
        self.checker = checker
        self.refusals = 0.0
        """The share of appends that fail for a while, for no reason of the controller's."""
        self.elected: Elected | None = None
        self.image = MetadataImage()
        self.records: list[Record] = []
        self._epoch = 0
        self._kept: dict[int, Append] = {}
        self._last_seen_us: dict[int, int] = {}
        self._lives: dict[int, int] = {}
        self.soon(self._tick)

    # -- elections

    def on_ping(self, session: tuple[int, int, bool], answer: Answer) -> None:
        """Of a broker, in one of its lives: a new one is not the controller that the one before was."""
        node_id, life, stands = session
        if self._lives.get(node_id, 0) > life:
            return
        if not stands:
            answer(self.elected)
            return
        self._last_seen_us[node_id] = self.world.now_us
        is_new = self._lives.get(node_id) != life
        self._lives[node_id] = life
        if self.elected is None or (is_new and self.elected.node_id == node_id):
            self._elect()
        answer(self.elected)

    def on_usurp(self, asked: Elected, answer: Answer) -> None:
        """`asked` is the epoch that is over, and who says so."""
        self._last_seen_us[asked.node_id] = self.world.now_us
        if self.elected is not None and self.elected.epoch == asked.epoch and self.elected.node_id != asked.node_id:
            self._begin(asked.node_id)
        answer(self.elected)

    def on_resign(self, asked: Elected, answer: Answer) -> None:
        self._last_seen_us.pop(asked.node_id, None)
        if self.elected == asked:
            self.elected = None
            self._elect()
        answer(None)

    def _tick(self) -> None:
        if self.elected is not None and not self._is_seen(self.elected.node_id):
            self.elected = None
            self._elect()
        self.after(100 * MS, self._tick)

    def _is_seen(self, node_id: int) -> bool:
        return self.world.now_us - self._last_seen_us.get(node_id, 0) < SESSION_US

    def _elect(self) -> None:
        candidates = [node_id for node_id in sorted(self._last_seen_us) if self._is_seen(node_id)]
        if candidates:
            self._begin(self.world.random.choice(candidates))

    def _begin(self, node_id: int) -> None:
        self._epoch += 1
        self.elected = Elected(self._epoch, node_id)
        self.world.note("store: broker {} is elected, epoch {}", node_id, self._epoch)

    # -- records

    def fence(self, epoch: int) -> bool:
        """Whether that controller may write."""
        return self.elected is not None and epoch == self.elected.epoch

    def on_load(self, epoch: int, answer: Answer) -> None:
        answer(self.image if self.fence(epoch) else Refusal(is_deposed=True))

    def on_append(self, append: Append, answer: Answer) -> None:
        if self._kept.get(append.base_version) is append:
            answer(None)  # it came before, and the answer was lost
        elif not self.fence(append.epoch):
            answer(Refusal(is_deposed=True))
        elif self.world.chance(self.refusals):
            answer(Refusal(is_deposed=False))
        else:
            self._kept[append.base_version] = append
            self._keep(append)
            answer(None)

    def _keep(self, append: Append) -> None:
        before = self.image
        if append.base_version != before.version:
            self.checker.fail(f"{append} does not follow version {before.version}")
        self.records += append.records
        self.image = before.apply(append.records)
        self.checker.metadata_changed(before, append.records, self.image)
        for record in append.records:
            self.world.note("store: epoch {}: {}", append.epoch, record)


class StoreClient:
    """A broker's end."""

    def __init__(self, owner: Process, store: Store, network: Network) -> None:
        self._owner = owner
        self._store = store
        self._network = network

    def ping(self, node_id: int, answer: Answer, *, stands: bool) -> None:
        self._ask("ping", (node_id, self._owner.life, stands), answer)

    def usurp(self, epoch: int, node_id: int, answer: Answer) -> None:
        self._ask("usurp", Elected(epoch, node_id), answer)

    def resign(self, elected: Elected) -> None:
        self._ask("resign", elected, lambda _: None)

    def load(self, epoch: int, answer: Answer) -> None:
        self._ask("load", epoch, answer)

    def append(self, append: Append, answer: Answer, *, goes_on: Callable[[], bool]) -> None:
        """Until the outcome is known, or nobody wants to know any more."""

        def answered(outcome: object) -> None:
            if not isinstance(outcome, Failure):
                answer(outcome)
            elif goes_on():
                self._owner.after(20 * MS, self._ask, "append", append, answered)
            else:
                answer(Refusal(is_deposed=True))

        self._ask("append", append, answered)

    def _ask(self, what: str, request: object, answer: Answer) -> None:
        self._network.ask(
            self._owner, self._store, what, request, answer, timeout_us=ANSWER_TIMEOUT_US, connection="store"
        )
