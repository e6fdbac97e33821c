"""Brokers come, live and go."""

from __future__ import annotations

import pytest

from moldau.cluster.brokers import Heartbeat
from moldau.cluster.controller import Controller
from moldau.errors import ErrorCode, KafkaError
from moldau.metadata.image import MetadataImage
from tests.unit.cluster.controlled import SESSION_MS, Controlled

ELSEWHERE = (("PLAINTEXT", "elsewhere", 1, "PLAINTEXT"),)


def refused(code: ErrorCode) -> pytest.RaisesExc[KafkaError]:
    return pytest.RaisesExc(KafkaError, check=lambda error: error.code is code)


class TestRegistration:
    def test_a_broker_begins_fenced_with_the_version_of_the_image_as_its_epoch(self) -> None:
        cluster = Controlled(brokers=0)
        epoch = cluster.register(5, rack="r")
        broker = cluster.broker(5)
        assert (broker.broker_epoch, broker.rack, broker.fenced) == (epoch, "r", True)
        assert epoch == cluster.image.version

    def test_the_same_life_keeps_its_epoch_and_its_state(self) -> None:
        cluster = Controlled()
        cluster.lives[1] -= 1
        epoch = cluster.register(1, endpoints=ELSEWHERE)
        assert epoch == cluster.epoch(1)
        assert not cluster.broker(1).fenced
        assert cluster.broker(1).endpoints[0][1] == "elsewhere"

    def test_the_same_registration_again_changes_nothing(self) -> None:
        cluster = Controlled()
        version = cluster.image.version
        cluster.lives[1] -= 1
        cluster.register(1)
        assert cluster.image.version == version

    def test_a_second_process_with_a_living_brokers_id_is_refused(self) -> None:
        cluster = Controlled()
        cluster.now_ms += SESSION_MS - 1
        with refused(ErrorCode.DUPLICATE_BROKER_REGISTRATION):
            cluster.register(1, endpoints=ELSEWHERE)

    def test_at_the_same_address_there_is_no_second_process_but_the_next_life(self) -> None:
        cluster = Controlled()
        before = cluster.epoch(1)
        assert cluster.register(1) > before

    def test_after_the_session_the_next_life_registers(self) -> None:
        cluster = Controlled()
        before = cluster.epoch(1)
        cluster.now_ms += SESSION_MS
        assert cluster.register(1, endpoints=ELSEWHERE) > before
        assert cluster.broker(1).fenced

    def test_the_next_life_of_one_seen_dead_need_not_wait(self) -> None:
        cluster = Controlled()
        cluster.die(1)
        cluster.register(1, endpoints=ELSEWHERE)

    def test_one_that_shut_down_in_order_need_not_wait(self) -> None:
        cluster = Controlled()
        assert cluster.beat(1, want_shut_down=True).should_shut_down
        cluster.register(1, endpoints=ELSEWHERE)

    def test_a_broker_of_another_cluster_is_refused(self) -> None:
        with refused(ErrorCode.INCONSISTENT_CLUSTER_ID):
            Controlled().register(9, cluster_id="another")

    def test_the_next_life_does_not_lead_before_it_is_unfenced(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2)
        cluster.now_ms += SESSION_MS
        cluster.beat(2)
        cluster.register(1)
        assert (cluster.part().leader, cluster.part().isr) == (2, (2,))


class TestHeartbeats:
    def test_a_broker_is_unfenced_when_it_knows_its_own_registration(self) -> None:
        cluster = Controlled(brokers=0)
        epoch = cluster.register(1)
        reply = cluster.beat(1, offset=epoch - 1)
        assert (reply.is_caught_up, reply.is_fenced) == (False, True)
        reply = cluster.beat(1, offset=epoch)
        assert (reply.is_caught_up, reply.is_fenced) == (True, False)
        assert not cluster.broker(1).fenced

    def test_a_broker_that_wants_to_stay_fenced_does(self) -> None:
        cluster = Controlled(brokers=0)
        cluster.register(1)
        assert cluster.beat(1, want_fence=True).is_fenced

    def test_a_broker_can_be_fenced_by_its_own_wish(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2)
        assert cluster.beat(1, want_fence=True).is_fenced
        assert cluster.part().leader == 2

    @pytest.mark.parametrize("broker_id", [1, 99])
    def test_another_life_is_told_so(self, broker_id: int) -> None:
        cluster = Controlled()
        with refused(ErrorCode.STALE_BROKER_EPOCH):
            cluster.controller.heartbeat(cluster.image, Heartbeat(broker_id, 999, 999), cluster.now_ms)

    def test_nothing_changes_while_all_is_well(self) -> None:
        cluster = Controlled()
        version = cluster.image.version
        cluster.beat(1)
        assert cluster.image.version == version


class TestSessions:
    def test_silence_fences_a_broker(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, 3)
        assert not cluster.pass_ms(SESSION_MS - 1, beating=(2, 3))
        cluster.pass_ms(1)
        assert cluster.broker(1).fenced
        assert (cluster.part().leader, cluster.part().isr) == (2, (2, 3))

    def test_brokers_silent_together_hand_nothing_to_each_other(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, 3)
        cluster.pass_ms(SESSION_MS, beating=(3,))
        assert (cluster.part().leader, cluster.part().isr, cluster.part().leader_epoch) == (3, (3,), 1)

    def test_a_fenced_broker_that_is_heard_again_comes_back_in_the_same_life(self) -> None:
        cluster = Controlled()
        cluster.pass_ms(SESSION_MS, beating=(2, 3))
        epoch = cluster.epoch(1)
        assert not cluster.beat(1).is_fenced
        assert cluster.epoch(1) == epoch

    def test_a_new_controller_gives_everybody_a_whole_session(self) -> None:
        cluster = Controlled()
        cluster.now_ms += SESSION_MS * 10
        cluster.controller = Controller(lambda: cluster.config, cluster.image, cluster.now_ms)
        assert not cluster.pass_ms(SESSION_MS - 1)
        assert cluster.pass_ms(1)

    def test_death_of_a_life_that_is_over_means_nothing(self) -> None:
        cluster = Controlled()
        assert cluster.controller.broker_died(cluster.image, 1, cluster.epoch(1) - 1) == []
        assert cluster.controller.broker_died(cluster.image, 99, 1) == []


class TestControlledShutdown:
    def test_leaders_move_before_the_broker_may_stop(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2, 3)
        reply = cluster.beat(1, want_shut_down=True)
        assert (reply.should_shut_down, reply.is_fenced) == (False, False)
        assert (cluster.part().leader, cluster.part().isr) == (2, (2, 3))
        handed_over = cluster.image.version
        cluster.beat(2, offset=handed_over)
        cluster.beat(3, offset=handed_over - 1)
        assert not cluster.beat(1, want_shut_down=True).should_shut_down, "broker 3 does not know yet"
        cluster.beat(3, offset=handed_over)
        assert cluster.beat(1, want_shut_down=True).should_shut_down
        assert cluster.broker(1).fenced

    def test_a_broker_about_to_stop_gets_no_leadership(self) -> None:
        cluster = Controlled()
        cluster.add(1, 2)
        cluster.add(2, 1)
        cluster.beat(1, want_shut_down=True)
        cluster.die(2)
        assert [cluster.part(index).leader for index in (0, 1)] == [-1, -1]

    def test_a_broker_that_leads_nothing_may_stop_at_once(self) -> None:
        cluster = Controlled()
        cluster.add(2, 1)
        assert cluster.beat(1, want_shut_down=True).should_shut_down

    def test_the_last_replica_stays_in_the_isr_and_leads_again(self) -> None:
        cluster = Controlled(brokers=1)
        cluster.add(1)
        cluster.beat(1, want_shut_down=True)
        assert (cluster.part().leader, cluster.part().isr) == (-1, (1,))
        assert cluster.beat(1, want_shut_down=True).should_shut_down
        cluster.revive(1)
        assert (cluster.part().leader, cluster.part().isr) == (1, (1,))


class TestUnregister:
    def test_a_broker_is_forgotten_and_leaves_its_partitions(self) -> None:
        cluster = Controlled()
        cluster.add(2, 3)
        cluster.do(cluster.controller.unregister(cluster.image, 2)[0])
        assert 2 not in cluster.image.brokers
        assert (cluster.part().leader, cluster.part().isr) == (3, (3,))

    def test_the_controllers_own_is_refused(self) -> None:
        cluster = Controlled()
        with refused(ErrorCode.INVALID_REQUEST):
            cluster.controller.unregister(cluster.image, cluster.config.node_id)

    def test_an_unknown_one_is_refused(self) -> None:
        with refused(ErrorCode.BROKER_ID_NOT_REGISTERED):
            Controlled().controller.unregister(MetadataImage(), 1)


class TestProducerIds:
    def test_blocks_never_overlap(self) -> None:
        cluster = Controlled()
        blocks = []
        for broker_id in (1, 2, 1):
            epoch = cluster.epoch(broker_id)
            records, block = cluster.controller.allocate_producer_ids(cluster.image, broker_id, epoch)
            cluster.do(records)
            blocks.append(block)
        assert blocks == [range(1_000), range(1_000, 2_000), range(2_000, 3_000)]

    def test_only_for_a_brokers_present_life(self) -> None:
        cluster = Controlled()
        with refused(ErrorCode.STALE_BROKER_EPOCH):
            cluster.controller.allocate_producer_ids(cluster.image, 1, cluster.epoch(1) - 1)


class TestACutOffController:
    def test_it_is_suspected_when_most_brokers_fall_silent_at_once(self) -> None:
        cluster = Controlled(brokers=3)
        cluster.now_ms += SESSION_MS
        cluster.beat(1)
        assert cluster.controller.is_isolated(cluster.image, cluster.now_ms)

    def test_it_is_suspected_when_the_first_session_ends_and_the_others_are_silent_too(self) -> None:
        cluster = Controlled(brokers=3)
        cluster.now_ms += 1_000
        cluster.beat(3)
        cluster.now_ms += SESSION_MS - 1_000
        assert cluster.controller.is_isolated(cluster.image, cluster.now_ms)

    def test_not_while_it_hears_half_of_the_others(self) -> None:
        cluster = Controlled(brokers=3)
        cluster.now_ms += SESSION_MS
        cluster.beat(1)
        cluster.beat(3)
        assert not cluster.controller.is_isolated(cluster.image, cluster.now_ms)

    def test_not_for_brokers_that_are_seen_to_be_dead(self) -> None:
        cluster = Controlled(brokers=3)
        cluster.die(2)
        cluster.die(3)
        cluster.now_ms += SESSION_MS
        cluster.beat(1)
        assert not cluster.controller.is_isolated(cluster.image, cluster.now_ms)

    def test_of_two_brokers_either_may_go_on_without_the_other(self) -> None:
        cluster = Controlled(brokers=2)
        cluster.now_ms += SESSION_MS
        cluster.beat(1)
        assert not cluster.controller.is_isolated(cluster.image, cluster.now_ms)


def test_the_session_of_a_silent_predecessor_began_before_its_successor() -> None:
    cluster = Controlled()
    cluster.controller.set_last_contact(1, cluster.now_ms - SESSION_MS // 2)
    cluster.now_ms += SESSION_MS // 2 - 1
    cluster.beat(2)
    cluster.do(cluster.controller.tick(cluster.image, cluster.now_ms))
    assert not cluster.broker(1).fenced
    cluster.now_ms += 1
    cluster.do(cluster.controller.tick(cluster.image, cluster.now_ms))
    assert cluster.broker(1).fenced
    assert not cluster.broker(2).fenced
    assert not cluster.broker(3).fenced


def test_a_predecessor_that_is_heard_again_keeps_its_session() -> None:
    cluster = Controlled()
    cluster.controller.set_last_contact(1, cluster.now_ms - SESSION_MS + 1)
    cluster.beat(1)
    cluster.now_ms += SESSION_MS - 1
    cluster.do(cluster.controller.tick(cluster.image, cluster.now_ms))
    assert not cluster.broker(1).fenced
