"""The admin clients of three libraries behind one small interface, so that each promise is checked with each.

What a broker refuses raises `Refused` with Kafka's code, whatever a library makes of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import aiokafka.admin.config_resource as aiokafka_config
import confluent_kafka
import confluent_kafka.admin as confluent_admin
import kafka.admin
import kafka.errors
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka import admin as aiokafka_admin
from aiokafka.errors import BrokerResponseError

from moldau.errors import ErrorCode

TIMEOUT_S = 20.0


class Refused(Exception):
    def __init__(self, code: int, message: str | None) -> None:
        super().__init__(f"{ErrorCode(code).name}: {message}")
        self.code = ErrorCode(code)


class Admin(Protocol):
    name: str

    def create(
        self,
        bootstrap: str,
        topic: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None: ...

    def delete(self, bootstrap: str, topic: str) -> None: ...

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None: ...

    def topics(self, bootstrap: str) -> dict[str, int]:
        """Names of all topics and how many partitions they have."""

    def configs(self, bootstrap: str, topic: str) -> dict[str, str | None]: ...

    def alter_configs(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
        """AlterConfigs: what is not named goes back to its default."""

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> int:
        """Partition 0's low watermark afterwards."""

    def cluster(self, bootstrap: str) -> tuple[str, int, list[str]]:
        """Cluster id, controller id and the brokers' addresses."""


class Confluent:
    name = "confluent-kafka"

    def _admin(self, bootstrap: str) -> Any:
        return confluent_admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def _ask(self, bootstrap: str, ask: Callable[[Any], Mapping[Any, Any]]) -> Any:
        admin = self._admin(bootstrap)  # the answer never comes when nobody holds it
        (future,) = ask(admin).values()
        try:
            return future.result(TIMEOUT_S)
        except confluent_kafka.KafkaException as error:
            raise Refused(error.args[0].code(), error.args[0].str()) from error

    def create(
        self,
        bootstrap: str,
        topic: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        wanted = confluent_admin.NewTopic(topic, partitions, replication_factor, config=dict(configs or {}))
        self._ask(bootstrap, lambda admin: admin.create_topics([wanted], validate_only=validate_only))

    def delete(self, bootstrap: str, topic: str) -> None:
        self._ask(bootstrap, lambda admin: admin.delete_topics([topic]))

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._ask(bootstrap, lambda admin: admin.create_partitions([confluent_admin.NewPartitions(topic, partitions)]))

    def topics(self, bootstrap: str) -> dict[str, int]:
        listed = self._admin(bootstrap).list_topics(timeout=TIMEOUT_S)
        return {name: len(topic.partitions) for name, topic in listed.topics.items()}

    def configs(self, bootstrap: str, topic: str) -> dict[str, str | None]:
        resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, topic)
        entries = self._ask(bootstrap, lambda admin: admin.describe_configs([resource]))
        return {name: entry.value for name, entry in entries.items()}

    def alter_configs(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
        resource = confluent_admin.ConfigResource(confluent_admin.ResourceType.TOPIC, topic, dict(configs))
        self._ask(bootstrap, lambda admin: admin.alter_configs([resource]))

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> int:
        wanted = confluent_kafka.TopicPartition(topic, 0, before_offset)
        return int(self._ask(bootstrap, lambda admin: admin.delete_records([wanted])).low_watermark)

    def cluster(self, bootstrap: str) -> tuple[str, int, list[str]]:
        admin = self._admin(bootstrap)
        told = admin.describe_cluster().result(TIMEOUT_S)
        return told.cluster_id, told.controller.id, [f"{node.host}:{node.port}" for node in told.nodes]


class KafkaPython:
    name = "kafka-python"

    def _ask(self, bootstrap: str, ask: Callable[[Any], Any]) -> Any:
        admin = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            return ask(admin)
        except kafka.errors.BrokerResponseError as error:
            raise Refused(error.errno, str(error)) from error
        finally:
            admin.close()

    def create(
        self,
        bootstrap: str,
        topic: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        wanted = kafka.admin.NewTopic(topic, partitions, replication_factor, topic_configs=dict(configs or {}))
        self._ask(bootstrap, lambda admin: admin.create_topics([wanted], validate_only=validate_only))

    def delete(self, bootstrap: str, topic: str) -> None:
        self._ask(bootstrap, lambda admin: admin.delete_topics([topic]))

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None:
        wanted = {topic: kafka.admin.NewPartitions(partitions)}
        self._ask(bootstrap, lambda admin: admin.create_partitions(wanted))

    def topics(self, bootstrap: str) -> dict[str, int]:
        told = self._ask(bootstrap, lambda admin: admin.describe_topics())
        return {topic["name"]: len(topic["partitions"]) for topic in told}

    def configs(self, bootstrap: str, topic: str) -> dict[str, str | None]:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic)
        told = self._ask(bootstrap, lambda admin: admin.describe_configs([resource], config_filter="all"))
        return {name: entry["value"] for name, entry in told["topic"][topic].items()}

    def alter_configs(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
        resource = kafka.admin.ConfigResource(kafka.admin.ConfigResourceType.TOPIC, topic, dict(configs))
        told = self._ask(bootstrap, lambda admin: admin.alter_configs([resource], incremental=False))
        outcome = told["topic"][topic]
        if outcome != "OK":  # such as "[Error 40] InvalidConfigurationError: …"
            raise Refused(int(outcome.split("]")[0].split()[1]), outcome)

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> int:
        wanted = {kafka.TopicPartition(topic, 0): before_offset}
        (result,) = self._ask(bootstrap, lambda admin: admin.delete_records(wanted)).values()
        return int(result["low_watermark"])

    def cluster(self, bootstrap: str) -> tuple[str, int, list[str]]:
        told = self._ask(bootstrap, lambda admin: admin.describe_cluster())
        brokers = [f"{broker['host']}:{broker['port']}" for broker in told["brokers"]]
        return told["cluster_id"], told["controller_id"], brokers


class AioKafka:
    name = "aiokafka"

    def _ask(self, bootstrap: str, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        async def work() -> Any:
            admin = aiokafka_admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
            await admin.start()
            try:
                return await ask(admin)
            except BrokerResponseError as error:
                raise Refused(error.errno, str(error)) from error
            finally:
                await admin.close()

        return asyncio.run(work())

    def create(
        self,
        bootstrap: str,
        topic: str,
        partitions: int = -1,
        replication_factor: int = -1,
        *,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        wanted = aiokafka_admin.NewTopic(topic, partitions, replication_factor, topic_configs=dict(configs or {}))
        answer = self._ask(bootstrap, lambda admin: admin.create_topics([wanted], validate_only=validate_only))
        self._check(*answer.topic_errors[0][1:])

    def delete(self, bootstrap: str, topic: str) -> None:
        answer = self._ask(bootstrap, lambda admin: admin.delete_topics([topic]))
        self._check(answer.topic_error_codes[0][1])

    def grow(self, bootstrap: str, topic: str, partitions: int) -> None:
        wanted = {topic: aiokafka_admin.NewPartitions(partitions)}
        answer = self._ask(bootstrap, lambda admin: admin.create_partitions(wanted))
        self._check(*answer.topic_errors[0][1:])

    def topics(self, bootstrap: str) -> dict[str, int]:
        told = self._ask(bootstrap, lambda admin: admin.describe_topics())
        return {topic["topic"]: len(topic["partitions"]) for topic in told}

    def configs(self, bootstrap: str, topic: str) -> dict[str, str | None]:
        resource = aiokafka_config.ConfigResource(aiokafka_config.ConfigResourceType.TOPIC, topic)
        (answer,) = self._ask(bootstrap, lambda admin: admin.describe_configs([resource]))
        code, message, _, _, entries = answer.resources[0]
        self._check(code, message)
        return {entry[0]: entry[1] for entry in entries}

    def alter_configs(self, bootstrap: str, topic: str, configs: Mapping[str, str]) -> None:
        kind = aiokafka_config.ConfigResourceType.TOPIC
        resource = aiokafka_config.ConfigResource(kind, topic, configs=dict(configs))
        (answer,) = self._ask(bootstrap, lambda admin: admin.alter_configs([resource]))
        self._check(*answer.resources[0][:2])

    def delete_records(self, bootstrap: str, topic: str, before_offset: int) -> int:
        wanted = {AioTopicPartition(topic, 0): aiokafka_admin.RecordsToDelete(before_offset=before_offset)}
        (low_watermark,) = self._ask(bootstrap, lambda admin: admin.delete_records(wanted)).values()
        return int(low_watermark)

    def cluster(self, bootstrap: str) -> tuple[str, int, list[str]]:
        told = self._ask(bootstrap, lambda admin: admin.describe_cluster())
        brokers = [f"{broker['host']}:{broker['port']}" for broker in told["brokers"]]
        return told["cluster_id"], told["controller_id"], brokers

    def _check(self, code: int, message: str | None = None) -> None:
        if code:
            raise Refused(code, message)


ADMINS: tuple[Admin, ...] = (Confluent(), KafkaPython(), AioKafka())
