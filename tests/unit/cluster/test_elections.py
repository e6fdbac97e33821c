"""Who leads when brokers go, and at what price."""

from __future__ import annotations

from typing import Any

import pytest

from moldau.config.broker import BrokerConfig
from moldau.errors import ErrorCode
from moldau.metadata.configs import ConfigChange, ConfigOp, plan_incremental_alter_configs
from moldau.metadata.records import ConfigRecord
from moldau.wire.constants import ElectionType
from moldau.wire.topic_partition import TopicPartition
from tests.unit.cluster.controlled import TOPIC, Controlled

MIN_TWO: dict[str, Any] = {"min_insync_replicas": "2"}
UNCLEAN: dict[str, Any] = {"unclean_leader_election_enable": "true"}


def elect(cluster: Controlled, election: ElectionType, *indexes: int) -> list[ErrorCode]:
    partitions = [TopicPartition(TOPIC, index) for index in indexes]
    records, outcomes = cluster.controller.elect_leaders(cluster.image, election, partitions)
    cluster.do(records)
    return [outcome.code if outcome is not None else ErrorCode.NONE for outcome in outcomes.values()]


def set_minimum(cluster: Controlled, resource: tuple[str, str], value: str) -> None:
    change = ConfigChange("min.insync.replicas", ConfigOp.SET, value)
    cluster.do(plan_incremental_alter_configs(cluster.image, *resource, [change], cluster.config))


class TestLossOfALeader:
    def test_the_next_replica_in_sync_leads_with_a_new_epoch(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, 3, isr=(1, 3))
        cluster.die(1)
        part = cluster.part()
        assert (part.leader, part.isr, part.leader_epoch, part.partition_epoch) == (3, (3,), 1, 1)

    def test_loss_of_a_follower_keeps_the_leaders_epoch(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, 3)
        cluster.die(2)
        part = cluster.part()
        assert (part.leader, part.isr, part.leader_epoch, part.partition_epoch) == (1, (1, 3), 0, 1)

    def test_the_last_in_sync_stays_so_and_nobody_else_leads(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, 3, isr=(1,))
        cluster.die(1)
        part = cluster.part()
        assert (part.leader, part.isr, part.leader_epoch, part.last_known_elr) == (-1, (1,), 1, (1,))
        cluster.revive(1)
        part = cluster.part()
        assert (part.leader, part.isr, part.leader_epoch, part.last_known_elr) == (1, (1,), 2, ())

    def test_partitions_elsewhere_are_left_alone(self) -> None:
        cluster = Controlled()
        cluster.add(2, 3)
        cluster.die(1)
        assert cluster.part().partition_epoch == 0


class TestEligibleLeaderReplicas:
    def test_who_leaves_below_the_minimum_may_lead_later(self) -> None:
        cluster = Controlled(**MIN_TWO)
        cluster.add(1, 2, 3)
        cluster.die(3)
        assert cluster.part().elr == (), "two are left: what they commit, broker 3 lacks"
        cluster.die(2)
        assert (cluster.part().isr, cluster.part().elr) == ((1,), (2,))
        cluster.die(1)
        assert (cluster.part().leader, cluster.part().isr, cluster.part().elr) == (-1, (1,), (2,))
        cluster.revive(3)
        assert cluster.part().leader == -1
        cluster.revive(2)
        assert (cluster.part().leader, cluster.part().isr, cluster.part().elr) == (2, (2,), (1,))

    def test_enough_in_sync_again_ends_it(self) -> None:
        cluster = Controlled(**MIN_TWO)
        cluster.add(1, 2, 3, isr=(1,), elr=(2,))
        cluster.report_isr(1, 3)
        assert (cluster.part().isr, cluster.part().elr) == ((1, 3), ())

    def test_a_minimum_above_the_replicas_counts_as_all_of_them(self) -> None:
        cluster = Controlled(min_insync_replicas="5")
        cluster.add(1, 2)
        cluster.die(2)
        assert cluster.part().elr == (2,)

    def test_a_broker_that_may_have_lost_records_is_not_eligible(self) -> None:
        cluster = Controlled(**MIN_TWO)
        cluster.add(1, 2, 3, isr=(1,), elr=(2,))
        cluster.die(2)
        cluster.revive(2, clean=False)
        assert cluster.part().elr == ()
        cluster.die(1)
        assert cluster.part().leader == -1

    def test_another_takes_the_place_of_a_leader_that_may_have_lost_records(self) -> None:
        cluster = Controlled(**MIN_TWO)
        cluster.add(1, 2, 3, isr=(1,), elr=(2,))
        cluster.die(2)
        cluster.die(1)
        cluster.revive(1, clean=False)
        assert (cluster.part().leader, cluster.part().isr) == (-1, (2,))
        cluster.revive(2)
        assert cluster.part().leader == 2

    def test_where_all_may_have_lost_records_who_led_last_is_waited_for(self) -> None:
        cluster = Controlled(**MIN_TWO)
        cluster.add(1, 2, isr=(1,), elr=(2,))
        cluster.die(1)  # 2 leads
        cluster.die(2)
        for broker_id in (1, 2):
            cluster.register(broker_id, clean=False)
        assert (cluster.part().isr, cluster.part().elr) == ((2,), ())
        cluster.beat(1)
        assert cluster.part().leader == -1
        cluster.beat(2)
        assert cluster.part().leader == 2

    @pytest.mark.parametrize("resource", [("topic", TOPIC), ("broker", "")])
    def test_a_lower_minimum_that_the_isr_meets_leaves_nobody_eligible(self, resource: tuple[str, str]) -> None:
        cluster = Controlled(config=BrokerConfig(min_insync_replicas=2))
        cluster.add(1, 2, isr=(1,), elr=(2,))
        set_minimum(cluster, resource, "1")
        assert (cluster.part().elr, cluster.part().partition_epoch) == ((), 1)

    @pytest.mark.parametrize("resource", [("topic", TOPIC), ("broker", "")])
    def test_a_higher_minimum_keeps_who_is_eligible(self, resource: tuple[str, str]) -> None:
        cluster = Controlled(config=BrokerConfig(min_insync_replicas=2))
        cluster.add(1, 2, 3)
        cluster.die(3)
        cluster.die(1)
        cluster.revive(1)
        assert (cluster.part().leader, cluster.part().isr, cluster.part().elr) == (2, (2,), (1,))
        set_minimum(cluster, resource, "3")
        # The machine of 2 dies and comes back with part of its log, before the controller noticed.
        cluster.revive(2, clean=False)
        assert cluster.part().leader == 1, "it has all that was acknowledged"

    def test_a_lower_minimum_that_the_isr_is_still_below_keeps_who_is_eligible(self) -> None:
        cluster = Controlled(config=BrokerConfig(min_insync_replicas=3))
        cluster.add(1, 2, 3, isr=(2,), elr=(1, 3))
        set_minimum(cluster, ("topic", TOPIC), "2")
        assert cluster.part().elr == (1, 3)

    def test_the_clusters_minimum_changes_nothing_for_a_topic_with_its_own(self) -> None:
        cluster = Controlled(config=BrokerConfig(min_insync_replicas=2), **MIN_TWO)
        cluster.add(1, 2, 3, isr=(2,), elr=(1,))
        set_minimum(cluster, ("broker", ""), "1")
        assert (cluster.part().elr, cluster.part().partition_epoch) == ((1,), 0)

    def test_a_topic_without_its_own_minimum_any_more_goes_by_the_clusters(self) -> None:
        cluster = Controlled(config=BrokerConfig(min_insync_replicas=1), **MIN_TWO)
        cluster.add(1, 2, 3, isr=(2,), elr=(1,))
        change = ConfigChange("min.insync.replicas", ConfigOp.DELETE)
        cluster.do(plan_incremental_alter_configs(cluster.image, "topic", TOPIC, [change], cluster.config))
        assert cluster.part().elr == ()

    def test_a_leader_adds_nobody_before_it_knows_of_a_higher_minimum(self) -> None:
        """With ISR 1, 2 it would commit by the lower one, and 3, which lacks those records, would stay eligible."""
        cluster = Controlled(**MIN_TWO)
        cluster.add(1, 2, 3, isr=(2,), elr=(1, 3))
        known = cluster.part().partition_epoch
        set_minimum(cluster, ("topic", TOPIC), "3")
        assert cluster.report_isr(2, 1, partition_epoch=known) is ErrorCode.INVALID_UPDATE_VERSION
        cluster.report_isr(2, 1)
        assert (set(cluster.part().isr), cluster.part().elr) == ({1, 2}, (3,))

    @pytest.mark.parametrize(("files_say", "cluster_has", "eligible"), [(2, "1", ()), (1, "2", (2,))])
    def test_the_controller_goes_by_the_clusters_minimum_as_the_leader_does(
        self, files_say: int, cluster_has: str, eligible: tuple[int, ...]
    ) -> None:
        """A leader that commits alone by the cluster's value 1 has no eligible successor but itself."""
        cluster = Controlled(config=BrokerConfig(min_insync_replicas=files_say))
        cluster.do([ConfigRecord("broker", "", "min.insync.replicas", cluster_has)])
        cluster.add(1, 2)
        cluster.die(2)
        assert (cluster.part().isr, cluster.part().elr) == ((1,), eligible)
        cluster.pass_ms(1)
        cluster.die(1)
        cluster.revive(2)
        assert cluster.part().leader == (2 if eligible else -1)

    def test_a_controller_with_a_lower_minimum_clears_it(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, isr=(1,), elr=(2,))
        cluster.pass_ms(1)
        assert cluster.part().elr == ()
        assert cluster.pass_ms(1) == []


class TestUncleanElections:
    def test_any_replica_leads_where_the_topic_says_so(self) -> None:
        cluster = Controlled(**UNCLEAN)
        cluster.add(1, 2, 3, isr=(1,))
        cluster.die(1)
        assert (cluster.part().leader, cluster.part().isr, cluster.part().elr) == (2, (2,), ())

    @pytest.mark.parametrize("resource_name", ["", "1"])
    def test_a_dynamic_default_counts_from_its_record_on(self, resource_name: str) -> None:
        cluster = Controlled(config=BrokerConfig(node_id=1, unclean_leader_election_enable=True))
        cluster.do([ConfigRecord("broker", resource_name, "unclean.leader.election.enable", "false")])
        cluster.add(1, 2, isr=(1,))
        cluster.die(1)
        assert cluster.part().leader == -1

    def test_the_brokers_default_holds_where_the_topic_says_nothing(self) -> None:
        cluster = Controlled(config=BrokerConfig(unclean_leader_election_enable=True))
        cluster.add(1, 2, isr=(1,))
        cluster.die(1)
        assert cluster.part().leader == 2

    def test_the_topics_own_word_goes_before_the_default(self) -> None:
        config = BrokerConfig(unclean_leader_election_enable=True)
        cluster = Controlled(config=config, unclean_leader_election_enable="false")
        cluster.add(1, 2, isr=(1,))
        cluster.die(1)
        assert cluster.part().leader == -1

    def test_an_eligible_replica_goes_before_any_other(self) -> None:
        cluster = Controlled(**MIN_TWO, **UNCLEAN)
        cluster.add(1, 2, 3, isr=(1,), elr=(3,))
        cluster.die(1)
        assert (cluster.part().leader, cluster.part().elr) == (3, (1,))

    def test_a_topic_set_to_it_while_offline_gets_its_leader_with_the_next_tick(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, isr=(1,))
        cluster.die(1)
        assert cluster.pass_ms(1) == []
        change = ConfigChange("unclean.leader.election.enable", ConfigOp.SET, "true")
        cluster.do(plan_incremental_alter_configs(cluster.image, "topic", TOPIC, [change], cluster.config))
        assert cluster.controller.tick(cluster.image, cluster.now_ms), "looked at,"
        assert cluster.pass_ms(0), "and still due until it is true"
        assert cluster.part().leader == 2


class TestElectLeaders:
    def test_the_preferred_leader_leads_again(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, leader=2, leader_epoch=4)
        assert elect(cluster, ElectionType.PREFERRED, 0) == [ErrorCode.NONE]
        assert (cluster.part().leader, cluster.part().leader_epoch) == (1, 5)

    def test_each_partition_has_its_own_answer(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2)
        cluster.add(1, 2, isr=(2,))
        assert elect(cluster, ElectionType.PREFERRED, 0, 1, 2) == [
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    def test_an_unclean_one_can_be_asked_for(self) -> None:
        cluster = Controlled()
        for replicas in ((1, 2), (1,), (2, 1)):
            cluster.add(*replicas, isr=replicas[:1])
        cluster.die(1)
        assert elect(cluster, ElectionType.UNCLEAN, 0, 1, 2) == [
            ErrorCode.NONE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            ErrorCode.ELECTION_NOT_NEEDED,
        ]
        assert (cluster.part().leader, cluster.part().isr) == (2, (2,))

    def test_of_all_partitions_those_that_needed_none_are_not_told(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2)
        cluster.add(1, 2, leader=2)
        _, outcomes = cluster.controller.elect_leaders(cluster.image, ElectionType.PREFERRED, None)
        assert outcomes == {(TOPIC, 1): None}


class TestRebalance:
    INTERVAL_MS = 300_000

    def moved(self, moved: int, of: int, **config: object) -> Controlled:
        cluster = Controlled(config=BrokerConfig(broker_session_timeout_ms=10**9, **config))  # type: ignore[arg-type]
        for number in range(of):
            cluster.add(1, 2, leader=2 if number < moved else 1)
        return cluster

    def test_leaders_go_back_when_it_is_due(self) -> None:
        cluster = self.moved(2, of=10)
        assert cluster.pass_ms(self.INTERVAL_MS - 1) == []
        assert len(cluster.pass_ms(1)) == 2
        assert {part.leader for part in cluster.image.topics[TOPIC].partitions} == {1}
        assert cluster.pass_ms(1) == []

    def test_a_few_may_stay_where_they_are(self) -> None:
        assert self.moved(1, of=10).pass_ms(self.INTERVAL_MS) == []

    def test_it_can_be_turned_off(self) -> None:
        assert self.moved(10, of=10, auto_leader_rebalance_enable=False).pass_ms(self.INTERVAL_MS) == []

    def test_a_preferred_leader_out_of_sync_is_waited_for(self) -> None:
        cluster = self.moved(0, of=0)
        cluster.add(1, 2, isr=(2,))
        assert cluster.pass_ms(self.INTERVAL_MS) == []
