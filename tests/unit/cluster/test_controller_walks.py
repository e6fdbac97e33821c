"""Random walks of brokers, leaders and operators: what holds for every partition after every step."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from moldau.cluster.controller import Controller
from moldau.errors import KafkaError
from moldau.metadata.configs import ConfigChange, ConfigOp, plan_incremental_alter_configs
from moldau.metadata.image import PartitionImage
from moldau.wire.constants import ElectionType
from moldau.wire.topic_partition import TopicPartition
from tests.examples import examples
from tests.unit.cluster.controlled import SESSION_MS, TOPIC, Controlled

BROKERS = range(1, 6)
PARTITIONS = 4
some_broker = st.sampled_from(BROKERS)
some_partition = st.integers(0, PARTITIONS - 1)
some_replicas = st.lists(some_broker, min_size=1, max_size=4, unique=True)


class Walk(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Controlled(len(BROKERS))
        self.before: list[PartitionImage] = []
        self.may_be_unclean = False
        """An operator asked for it, or a broker lost records."""
        self.in_sync: set[int] = set()
        """What a leader said just now."""

    @initialize(replicas=st.lists(some_replicas, min_size=PARTITIONS, max_size=PARTITIONS), minimum=st.integers(1, 3))
    def create(self, replicas: list[list[int]], minimum: int) -> None:
        self.set_minimum(minimum)
        for each in replicas:
            self.cluster.add(*each)
        self.before = self.partitions()

    def partitions(self) -> list[PartitionImage]:
        return list(self.cluster.image.topics[TOPIC].partitions)

    # -- what can happen

    @rule(broker=some_broker)
    def dies(self, broker: int) -> None:
        self.cluster.die(broker)

    @rule(broker=some_broker, clean=st.booleans())
    def comes_back(self, broker: int, clean: bool) -> None:
        if self.cluster.broker(broker).fenced:
            self.cluster.die(broker)
            self.may_be_unclean = not clean
            self.cluster.register(broker, clean=clean)

    @rule(broker=some_broker, wish=st.sampled_from(["", "", "", "want_fence", "want_shut_down"]))
    def beats(self, broker: int, wish: str) -> None:
        self.cluster.beat(broker, **({wish: True} if wish else {}))

    @rule(beating=st.sets(some_broker))
    def time_passes(self, beating: set[int]) -> None:
        self.cluster.pass_ms(SESSION_MS // 2, beating=sorted(beating))

    @rule()
    def another_controller_takes_over(self) -> None:
        self.cluster.controller = Controller(lambda: self.cluster.config, self.cluster.image, self.cluster.now_ms)

    @rule(index=some_partition, isr=st.lists(some_broker, max_size=4, unique=True), in_order=st.booleans())
    def leader_reports(self, index: int, isr: list[int], in_order: bool) -> None:
        part = self.cluster.part(index)
        if part.leader < 0:
            return
        isr = [part.leader, *(one for one in isr if one != part.leader)] if in_order else isr
        self.in_sync = set(isr)
        self.cluster.report_isr(*isr, index=index)

    @rule(index=some_partition, replicas=st.none() | some_replicas)
    def operator_reassigns(self, index: int, replicas: list[int] | None) -> None:
        records, _ = self.cluster.controller.reassign(self.cluster.image, {TopicPartition(TOPIC, index): replicas})
        self.cluster.do(records)

    @rule(election=st.sampled_from(ElectionType))
    def operator_elects(self, election: ElectionType) -> None:
        self.may_be_unclean = election is ElectionType.UNCLEAN
        records, _ = self.cluster.controller.elect_leaders(self.cluster.image, election, None)
        self.cluster.do(records)

    @rule(minimum=st.integers(1, 3))
    def set_minimum(self, minimum: int) -> None:
        change = ConfigChange("min.insync.replicas", ConfigOp.SET, str(minimum))
        self.cluster.do(
            plan_incremental_alter_configs(self.cluster.image, "topic", TOPIC, [change], self.cluster.config)
        )

    # -- what holds

    @invariant()
    @precondition(lambda self: bool(self.before))
    def all_is_in_order(self) -> None:
        brokers = self.cluster.image.brokers
        for old, new in zip(self.before, self.partitions(), strict=True):
            assert new.leader in new.isr or new.leader == -1
            assert new.isr, "the last member stays"
            assert set(new.isr) <= set(new.replicas)
            assert set(new.elr) <= set(new.replicas)
            assert not set(new.elr).intersection(new.isr)
            for each in (new.replicas, new.isr, new.elr, new.adding, new.removing):
                assert len(each) == len(set(each))
            assert set(new.adding) | set(new.removing) <= set(new.replicas)
            assert not set(new.adding).intersection(new.removing), "one role at most"
            if new.leader >= 0:
                assert all(brokers[one].is_active for one in new.isr), "who is not there does not hold commits up"
                assert not new.last_known_elr
            else:
                assert not any(brokers[one].is_active for one in (*new.isr, *new.elr)), "who can lead does"
            self._changed_in_order(old, new)
        self.before = self.partitions()
        self.may_be_unclean = False
        self.in_sync = set()

    def _changed_in_order(self, old: PartitionImage, new: PartitionImage) -> None:
        if new == old:
            return
        # By how much, `Controlled` checks for each step: a rule may be several.
        assert new.partition_epoch > old.partition_epoch
        assert new.leader_epoch >= old.leader_epoch
        if new.leader != old.leader or not set(old.replicas) <= set(new.replicas):
            assert new.leader_epoch > old.leader_epoch
        if new.leader not in (old.leader, -1) and not self.may_be_unclean:
            assert new.leader in {*old.isr, *old.elr, *self.in_sync}, "an unclean leader"


TestWalk = Walk.TestCase
TestWalk.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)


def test_no_refusal_changes_anything() -> None:
    cluster = Controlled()
    cluster.add(1, 2)
    image = cluster.image
    with pytest.raises(KafkaError):
        cluster.register(1, cluster_id="another")
    with pytest.raises(KafkaError):
        cluster.controller.unregister(image, 9)
    assert cluster.image is image
