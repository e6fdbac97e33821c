"""Topics, configurations and the cluster through the admin clients that people use."""

from __future__ import annotations

import uuid

import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka.admin
import kafka.errors
import pytest

from moldau import Broker
from moldau.errors import ErrorCode
from moldau.wire.apis import ApiKey
from moldau.wire.messages import request_schema
from tests.integration.admins import ADMINS, TIMEOUT_S, Admin, Refused
from tests.integration.conftest import NewTopic
from tests.integration.raw import RawClient, batch_of

each_admin = pytest.mark.parametrize("admin", ADMINS, ids=lambda admin: admin.name)


def fresh_name() -> str:
    return f"admin-{uuid.uuid4().hex[:12]}"


def refusal(ask: object, *args: object, **options: object) -> ErrorCode:
    assert callable(ask)
    with pytest.raises(Refused) as refused:
        ask(*args, **options)
    return refused.value.code


# -- topics


@each_admin
def test_topics_come_grow_and_go(admin: Admin, bootstrap: str) -> None:
    topic = fresh_name()
    admin.create(bootstrap, topic, 2, 1, configs={"retention.ms": "60000"})
    assert admin.topics(bootstrap)[topic] == 2
    admin.grow(bootstrap, topic, 5)
    assert admin.topics(bootstrap)[topic] == 5
    assert admin.configs(bootstrap, topic)["retention.ms"] == "60000"
    admin.delete(bootstrap, topic)
    assert topic not in admin.topics(bootstrap)


@pytest.mark.parametrize("admin", ADMINS[:2], ids=lambda admin: admin.name)  # aiokafka cannot leave them open
def test_defaults_are_the_brokers(admin: Admin) -> None:
    with Broker({"num.partitions": 3}) as broker:
        admin.create(broker.bootstrap_servers, "t")
        assert admin.topics(broker.bootstrap_servers) == {"t": 3}


@each_admin
def test_refusals_carry_kafkas_codes(admin: Admin, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    assert refusal(admin.create, bootstrap, topic, 1, 1) is ErrorCode.TOPIC_ALREADY_EXISTS
    assert refusal(admin.create, bootstrap, "no spaces", 1, 1) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert refusal(admin.create, bootstrap, fresh_name(), 1, 3) is ErrorCode.INVALID_REPLICATION_FACTOR
    bad = {"retention.ms": "soon"}
    assert refusal(admin.create, bootstrap, fresh_name(), 1, 1, configs=bad) is ErrorCode.INVALID_CONFIG
    assert refusal(admin.grow, bootstrap, topic, 2) is ErrorCode.INVALID_PARTITIONS
    assert refusal(admin.grow, bootstrap, "missing", 2) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(admin.delete, bootstrap, "missing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refusal(admin.alter_configs, bootstrap, topic, bad) is ErrorCode.INVALID_CONFIG


@each_admin
def test_validate_only_creates_nothing(admin: Admin, bootstrap: str) -> None:
    topic = fresh_name()
    admin.create(bootstrap, topic, 1, 1, validate_only=True)
    assert topic not in admin.topics(bootstrap)
    assert refusal(admin.create, bootstrap, "?", 1, 1, validate_only=True) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_topics_and_configurations_survive_a_restart(tmp_path: object) -> None:
    admin = ADMINS[0]
    with Broker(data_dir=str(tmp_path)) as broker:
        admin.create(broker.bootstrap_servers, "kept", 3, 1, configs={"retention.ms": "777"})
        admin.create(broker.bootstrap_servers, "gone", 1, 1)
        admin.delete(broker.bootstrap_servers, "gone")
        before = admin.cluster(broker.bootstrap_servers)[0]
    with Broker(data_dir=str(tmp_path)) as broker:
        assert admin.topics(broker.bootstrap_servers) == {"kept": 3}
        assert admin.configs(broker.bootstrap_servers, "kept")["retention.ms"] == "777"
        assert admin.cluster(broker.bootstrap_servers)[0] == before


# -- first use


def test_a_first_produce_creates_the_topic(bootstrap: str) -> None:
    topic = fresh_name()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    delivered: list[object] = []
    producer.produce(topic, b"first", on_delivery=lambda error, message: delivered.append(error or message.offset()))
    assert producer.flush(TIMEOUT_S) == 0
    assert delivered == [0]


def test_a_first_produce_does_not_create_a_topic_where_that_is_off() -> None:
    with Broker({"auto.create.topics.enable": False}) as broker:
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "topic.metadata.propagation.max.ms": 200,
                "message.timeout.ms": 3000,
            }
        )
        failures: list[object] = []
        producer.produce("t", b"v", on_delivery=lambda error, _: failures.append(error and error.code()))
        assert producer.flush(TIMEOUT_S) == 0
        assert failures == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert ADMINS[0].topics(broker.bootstrap_servers) == {}


# -- configurations


@each_admin
def test_altered_configurations_replace_the_old(admin: Admin, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, configs={"retention.ms": 1000})
    admin.alter_configs(bootstrap, topic, {"segment.bytes": "2000000"})
    told = admin.configs(bootstrap, topic)
    assert told["segment.bytes"] == "2000000"
    # kafka-python reads the old ones first and sends them along.
    assert told["retention.ms"] == ("1000" if admin.name == "kafka-python" else "604800000")


def test_incremental_changes_leave_the_rest(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(1, configs={"retention.ms": 1000, "cleanup.policy": "delete"})
    operation = confluent_admin.AlterConfigOpType
    changes = [
        confluent_admin.ConfigEntry("cleanup.policy", "compact", incremental_operation=operation.APPEND),
        confluent_admin.ConfigEntry("retention.ms", None, incremental_operation=operation.DELETE),
        confluent_admin.ConfigEntry("segment.bytes", "3000000", incremental_operation=operation.SET),
    ]
    client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, topic, incremental_configs=changes)
    (future,) = client.incremental_alter_configs([resource]).values()
    future.result(TIMEOUT_S)
    told = ADMINS[0].configs(bootstrap, topic)
    assert (told["cleanup.policy"], told["retention.ms"], told["segment.bytes"]) == (
        "delete,compact",
        "604800000",
        "3000000",
    )


def test_a_smaller_message_limit_holds_from_the_next_record_on(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawClient(bootstrap) as client:
        assert client.produce(topic, batch_of(bytes(5000))).error_code == 0
        ADMINS[0].alter_configs(bootstrap, topic, {"max.message.bytes": "1000"})
        assert client.produce(topic, batch_of(bytes(5000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_broker_describes_itself(bootstrap: str) -> None:
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        controller = str(client.describe_cluster()["controller_id"])
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.BROKER, controller)
        told = client.describe_configs([resource], config_filter="all")["broker"][controller]
        assert told["num.partitions"]["value"] == "1"
        assert told["num.partitions"]["read_only"] is True
        assert controller in client.list_config_resources()["broker"]
    finally:
        client.close()


# -- records, folders, partitions, cluster


@each_admin
def test_records_are_deleted_up_to_an_offset(admin: Admin, bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic()
    with RawClient(bootstrap) as client:
        for number in range(10):
            client.produce(topic, batch_of(b"%d" % number))
        assert admin.delete_records(bootstrap, topic, 4) == 4
        assert client.fetch(topic, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert client.fetch(topic, 4).error_code == 0
        assert refusal(admin.delete_records, bootstrap, topic, 11) is ErrorCode.OFFSET_OUT_OF_RANGE


@each_admin
def test_the_cluster_is_described(admin: Admin, bootstrap: str) -> None:
    cluster_id, controller_id, brokers = admin.cluster(bootstrap)
    assert len(cluster_id) == 22
    assert controller_id >= 0
    assert brokers == [bootstrap]


def test_partitions_are_described_with_a_cursor(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(5)
    client = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        first = client.describe_topic_partitions([topic], response_partition_limit=3)
        cursor = first["next_cursor"]
        assert (cursor["topic_name"], cursor["partition_index"]) == (topic, 3)
        rest = client.describe_topic_partitions([topic], cursor=cursor)
        described = first["topics"][0]["partitions"] + rest["topics"][0]["partitions"]
        assert [partition["partition_index"] for partition in described] == [0, 1, 2, 3, 4]
        assert rest["next_cursor"] is None
    finally:
        client.close()


def test_a_topic_is_described_by_librdkafka(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    names = confluent_kafka.TopicCollection([topic])
    (future,) = client.describe_topics(names, include_authorized_operations=True).values()
    told = future.result(TIMEOUT_S)
    assert (told.name, told.is_internal, len(told.partitions)) == (topic, False, 2)
    assert {operation.name for operation in told.authorized_operations} == {
        "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS",
    }  # fmt: skip


def test_log_folders_tell_what_they_hold(bootstrap: str, new_topic: NewTopic) -> None:
    topic = new_topic(2)
    batch = batch_of(bytes(1000))
    with RawClient(bootstrap) as client:
        client.produce(topic, batch, 1)
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (broker,) = admin.describe_log_dirs({topic: [0, 1]})
        (folder,) = broker["log_dirs"]
        (told,) = folder["topics"]
        sizes = {partition["partition_index"]: partition["partition_size"] for partition in told["partitions"]}
        assert sizes == {0: 0, 1: len(batch)}
        assert 0 < folder["usable_bytes"] <= folder["total_bytes"]
    finally:
        admin.close()


def test_every_client_of_a_listener_is_sent_back_to_that_listener() -> None:
    with Broker(
        {
            "listeners": "PLAINTEXT://127.0.0.1:0,SECOND://127.0.0.1:0",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SECOND:PLAINTEXT",
        }
    ) as broker:
        addresses = broker.bootstrap_servers.split(",")
        assert len(addresses) == 2
        for address in addresses:
            assert ADMINS[1].cluster(address)[2] == [address]


# -- what this broker does not have


def test_acls_are_refused_as_by_a_kafka_without_an_authorizer(bootstrap: str) -> None:
    binding = (
        confluent_admin.ResourceType.TOPIC, "t", confluent_admin.ResourcePatternType.LITERAL, "User:a", "*",
        confluent_admin.AclOperation.READ, confluent_admin.AclPermissionType.ALLOW,
    )  # fmt: skip
    admin = confluent_admin.AdminClient({"bootstrap.servers": bootstrap})
    acl, acls = confluent_admin.AclBinding(*binding), confluent_admin.AclBindingFilter(*binding)
    assert admin.describe_acls(acls).result(TIMEOUT_S) == []  # this client drops the error, of Apache Kafka too
    for asked in (*admin.create_acls([acl]).values(), *admin.delete_acls([acls]).values()):
        with pytest.raises(confluent_kafka.KafkaException) as refused:
            asked.result(TIMEOUT_S)
        assert refused.value.args[0].code() == ErrorCode.SECURITY_DISABLED
        assert "No Authorizer is configured" in refused.value.args[0].str()


def test_kafka_python_reads_the_refusal_of_acls(bootstrap: str) -> None:
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        acls = kafka.admin.ACLFilter(
            principal=None, host=None, operation=kafka.admin.ACLOperation.ANY,
            permission_type=kafka.admin.ACLPermissionType.ANY,
            resource_pattern=kafka.admin.ResourcePatternFilter(
                kafka.admin.ResourceType.ANY, None, kafka.admin.ACLResourcePatternType.ANY
            ),
        )  # fmt: skip
        with pytest.raises(kafka.errors.SecurityDisabledError):
            admin.describe_acls(acls)
    finally:
        admin.close()


def test_a_connection_outlives_a_request_for_an_api_that_is_not_there(bootstrap: str) -> None:
    schema = request_schema(ApiKey.DESCRIBE_CLIENT_QUOTAS, 1)
    with RawClient(bootstrap) as client:
        for _ in range(2):
            answer = client.ask(schema.DescribeClientQuotasRequest(components=(), strict=False))
            assert (answer.error_code, answer.error_message) == (
                ErrorCode.UNSUPPORTED_VERSION,
                "this broker has no client quotas",
            )
