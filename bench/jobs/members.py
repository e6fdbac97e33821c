"""Members of groups, as light as the protocol allows, and the jobs that let many of them join and leave.

Both kinds tell alike what they hold: `generation`, and `owned`, the partitions of their share. A group is stable
once all its members hold shares of one generation that make up the whole topic.
"""

from __future__ import annotations

import contextlib
import random
import struct
import time
import uuid
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from bench import group_requests as requests
from bench.jobs.job import Parameters, Ready
from bench.jobs.swarm import Steps, Swarm, ask
from bench.raw import CLIENT_ID, RawConnection
from moldau.errors import COORDINATOR_UNAVAILABLE, ErrorCode
from moldau.wire import messages

LOADING_REST_S = 0.005
FIRST_EPOCH = 0
LEAVING_EPOCH = -1


def uneven(interval_s: float) -> float:
    """Around the interval: members that started together would beat together, and no service's members do."""
    return interval_s * random.uniform(0.5, 1.5)


class Member(Protocol):
    generation: int
    owned: Sequence[int]
    leaves: bool
    left_at: float

    def steps(self) -> Steps: ...


class ClassicMember:
    """JoinGroup, SyncGroup, heartbeats until a rebalance is on, and again; the leader deals out the partitions."""

    def __init__(self, group_id: str, topic: str, partitions: int, heartbeat_s: float) -> None:
        self.generation = -1
        self.owned: Sequence[int] = ()
        self.leaves = False
        self.left_at = 0.0
        self.member_id = ""
        self.answers = 0
        self._group_id = group_id
        self._topic = topic
        self._partitions = partitions
        self._heartbeat_s = heartbeat_s

    def steps(self) -> Steps:
        while not self.leaves:
            yield from self.join_and_sync()
            yield from self._beat()
        self.left_at = time.perf_counter()
        yield from self.leave()

    def join_and_sync(self) -> Steps:
        code = ErrorCode.REBALANCE_IN_PROGRESS
        # Somebody else may join between the two; then both are asked again.
        while code == ErrorCode.REBALANCE_IN_PROGRESS:
            joined = yield from self._join()
            shares = self._deal(joined.members) if joined.leader == self.member_id else {}
            request = requests.sync(self._group_id, self.member_id, joined.generation_id, shares)
            synced = yield from ask(request)
            code = synced.error_code
        requests.check(code)
        self.generation = joined.generation_id
        self.owned = struct.unpack(f">{len(synced.assignment) // 4}i", synced.assignment)

    def _join(self) -> Generator[tuple[float, bytes], memoryview, Any]:
        rest_s = 0.0
        while True:
            joined = yield from ask(requests.join(self._group_id, self.member_id, self._topic), rest_s)
            if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = joined.member_id
            elif joined.error_code in COORDINATOR_UNAVAILABLE:
                rest_s = LOADING_REST_S
            else:
                requests.check(joined.error_code)
                return joined

    def _deal(self, members: Sequence[Any]) -> dict[str, bytes]:
        hands = (range(first, self._partitions, len(members)) for first in range(len(members)))
        return {each.member_id: struct.pack(f">{len(hand)}i", *hand) for each, hand in zip(members, hands, strict=True)}

    def _beat(self) -> Steps:
        request = requests.heartbeat(self._group_id, self.member_id, self.generation)
        while not self.leaves:
            beat = yield from ask(request, uneven(self._heartbeat_s))
            if beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
                return
            requests.check(beat.error_code)

    def leave(self) -> Steps:
        yield from ask(requests.leave(self._group_id, self.member_id))

    def keep_busy(self, deadline: float) -> Steps:
        """Heartbeat and commit in turns, always one on its way. The first are checked, the others have to be equal."""
        beat = requests.heartbeat(self._group_id, self.member_id, self.generation)
        commit = requests.commit(self._group_id, self.member_id, self.generation, self._topic, 0)
        beat_frame, commit_frame = (messages.encode_request(1, CLIENT_ID, entity) for entity in (beat, commit))
        beaten = bytes((yield 0.0, beat_frame))
        requests.check_beaten(beaten)
        committed = bytes((yield 0.0, commit_frame))
        requests.check_committed(committed)
        while time.perf_counter() < deadline:
            for frame, expected in ((beat_frame, beaten), (commit_frame, committed)):
                response = yield 0.0, frame
                if response != expected:
                    raise RuntimeError("a member that was served before was refused")
                self.answers += 1


class ConsumerMember:
    """The consumer protocol (KIP-848): heartbeats alone, and the broker deals out the partitions.

    A changed share is confirmed at once, as clients do; otherwise a heartbeat comes when its time has come.
    """

    def __init__(self, group_id: str, topic: str, heartbeat_s: float) -> None:
        self.generation = FIRST_EPOCH
        self.owned: Sequence[int] = ()
        self.leaves = False
        self.left_at = 0.0
        self._member_id = str(uuid.uuid4())
        self._group_id = group_id
        self._topic = topic
        self._heartbeat_s = heartbeat_s

    def steps(self) -> Steps:
        yield from self._beat(self._request(FIRST_EPOCH, topic=self._topic, owned={}), 0.0)
        while not self.leaves:
            yield from self._beat(self._request(self.generation), uneven(self._heartbeat_s))
        self.left_at = time.perf_counter()
        yield from ask(self._request(LEAVING_EPOCH))

    def _request(self, epoch: int, **changes: Any) -> Any:
        return requests.consumer_heartbeat(self._group_id, self._member_id, epoch, **changes)

    def _beat(self, request: Any, rest_s: float) -> Steps:
        answer = yield from ask(request, rest_s)
        while answer.error_code in COORDINATOR_UNAVAILABLE:
            answer = yield from ask(request, LOADING_REST_S)
        requests.check(answer.error_code)
        self.generation = answer.member_epoch
        if answer.assignment is not None:
            share = {each.topic_id: each.partitions for each in answer.assignment.topic_partitions}
            self.owned = [index for partitions in share.values() for index in partitions]
            yield from self._beat(self._request(self.generation, owned=share), 0.0)


def is_stable(members: Sequence[Member], partitions: int) -> bool:
    """Whether the members hold the whole topic in one generation: each a share, nobody another's."""
    if len({member.generation for member in members}) > 1 or not all(member.owned for member in members):
        return False
    owned = [index for member in members for index in member.owned]
    return len(owned) == partitions and len(set(owned)) == partitions


def rebalance(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """All members of a group start at once; when the group is stable, one of them leaves."""
    group_id, topic, partitions = parameters["group"], parameters["topic"], parameters["partitions"]
    heartbeat_s = parameters["heartbeat_s"]

    def member() -> Member:
        if parameters["protocol"] == "consumer":
            return ConsumerMember(group_id, topic, heartbeat_s)
        return ClassicMember(group_id, topic, partitions, heartbeat_s)

    with contextlib.ExitStack() as stack:
        members = [member() for _ in range(parameters["members"])]
        connections = _connect(stack, parameters["bootstrap"], len(members))
        requests.await_coordinator(connections[0], group_id)
        swarm = Swarm()
        ready()
        started = time.perf_counter()
        for each, connection in zip(members, connections, strict=True):
            swarm.add(connection, each.steps())
        swarm.run_until(lambda: is_stable(members, partitions))
        start_s = time.perf_counter() - started
        leaver = members.pop()
        leaver.leaves = True
        swarm.run_until(lambda: leaver.left_at > 0 and is_stable(members, partitions))
        leave_s = time.perf_counter() - leaver.left_at
        seconds = time.perf_counter() - started
        # Members that only vanished would be thrown out one by one, in the midst of what is measured next.
        for each in members:
            each.leaves = True
        swarm.run_until(lambda: swarm.is_idle)
        return {"seconds": seconds, "start_s": start_s, "leave_s": leave_s}


def groups(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    """Many groups of one member each: all start at once, then all are busy for some seconds, then all leave."""
    topic, partitions = parameters["topic"], parameters["partitions"]
    with contextlib.ExitStack() as stack:
        names = [f"{parameters['group']}-{number}" for number in range(parameters["groups"])]
        members = [ClassicMember(name, topic, partitions, 0.0) for name in names]
        connections = _connect(stack, parameters["bootstrap"], len(members))
        requests.await_coordinator(connections[0], names[0])
        pairs = list(zip(members, connections, strict=True))
        swarm = Swarm()
        ready()
        started = time.perf_counter()
        for member, connection in pairs:
            swarm.add(connection, member.join_and_sync())
        swarm.run_until(lambda: swarm.is_idle)
        start_s = time.perf_counter() - started
        if not all(is_stable([member], partitions) for member in members):
            raise AssertionError("a group's only member does not hold the whole topic")
        busy_from = time.perf_counter()
        for member, connection in pairs:
            swarm.add(connection, member.keep_busy(busy_from + parameters["seconds"]))
        swarm.run_until(lambda: swarm.is_idle)
        busy_s = time.perf_counter() - busy_from
        for member, connection in pairs:
            swarm.add(connection, member.leave())
        swarm.run_until(lambda: swarm.is_idle)
        answers = sum(member.answers for member in members)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "start_s": start_s, "busy_s": busy_s, "answers": answers}


def _connect(stack: contextlib.ExitStack, bootstrap: str, count: int) -> list[RawConnection]:
    connections = []
    for _ in range(count):
        connections.append(stack.enter_context(RawConnection(bootstrap)))
        connections[-1].greet()
    return connections
