"""The pytest plugin. It is loaded automatically once Moldau is installed.

| fixture                 |                                                                           |
|-------------------------|---------------------------------------------------------------------------|
| `kafka_broker`          | one broker for the test session, with `.bootstrap_servers`                |
| `kafka_broker_config`   | its server properties: override it in conftest.py, with scope="session"   |
| `kafka_topic`           | the name of a new, empty topic on `kafka_broker`, deleted afterwards      |
| `kafka_producer`        | a confluent-kafka `Producer` for `kafka_broker`, flushed at the end       |
| `kafka_consumer`        | a `Consumer` that reads `kafka_topic` from the beginning                  |
| `fresh_kafka_broker`    | a broker for one test, with the same configuration                        |
| `kafka_cluster`         | three brokers for one test, each in its own process                       |
| `simulated_kafka`       | a simulated cluster, for an `async def` test, which runs in virtual time  |

`@pytest.mark.kafka_topic(partitions=3, config={"cleanup.policy": "compact"})` on a test configures its topic.
`@pytest.mark.simulated_kafka(brokers=3, seeds=range(20))` runs a test once for each seed.
"""

from __future__ import annotations

import inspect
import re
import uuid
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from moldau.embedded import Broker
    from moldau.local_cluster import Cluster


T = TypeVar("T")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "kafka_topic(partitions=1, config={}): the topic that the fixture kafka_topic creates"
    )
    config.addinivalue_line(
        "markers",
        "simulated_kafka(brokers=3, seed=0, seeds=None, config={}, limit_s=600): the cluster of simulated_kafka",
    )


@pytest.fixture(scope="session")
def kafka_broker_config() -> dict[str, object]:
    """Server properties of the brokers. Override it in conftest.py."""
    return {}


@pytest.fixture(scope="session")
def kafka_broker(kafka_broker_config: dict[str, object]) -> Iterator[Broker]:
    """A broker on a free port, for the test session."""
    broker = _start(kafka_broker_config)
    yield broker
    broker.stop()


@pytest.fixture
def fresh_kafka_broker(kafka_broker_config: dict[str, object]) -> Iterator[Broker]:
    """A broker on a free port, for one test."""
    broker = _start(kafka_broker_config)
    yield broker
    broker.stop()


def _start(config: dict[str, object]) -> Broker:
    from moldau.embedded import Broker

    return _or_fail("kafka_broker_config", lambda: Broker(config).start())


def _or_fail(where: str, do: Callable[[], T]) -> T:
    """The result of `do`; a MoldauError fails the test with its message, without a traceback."""
    from moldau.errors import MoldauError

    try:
        return do()
    except MoldauError as error:
        message = f"{where}: {error}"
    pytest.fail(message, pytrace=False)  # not above, or pytest shows the first error as well


@pytest.fixture
def kafka_cluster() -> Iterator[Cluster]:
    """Three brokers that a test may kill, pause and restart."""
    from moldau.local_cluster import Cluster

    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def kafka_topic(kafka_broker: Broker, request: pytest.FixtureRequest) -> Iterator[str]:
    """A new topic named after the test, with one partition unless the marker `kafka_topic` says otherwise."""
    from moldau.client.admin import create_topic, delete_topics
    from moldau.client.cluster import ClusterClient
    from moldau.client.config import ClientConfig

    partitions, config = _topic_options(request.node)
    stem = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:80]
    name = f"{stem}-{uuid.uuid4().hex[:8]}"
    with ClusterClient(ClientConfig.from_properties(kafka_broker.bootstrap_servers, {})) as client:
        _or_fail("@pytest.mark.kafka_topic", lambda: create_topic(client, name, partitions=partitions, configs=config))
        yield name
        delete_topics(client, [name])


def _topic_options(test: pytest.Item) -> tuple[int, dict[str, str]]:
    """From the closest marker: of the test, its class or its module."""
    from moldau.config.properties import as_property

    marker = test.get_closest_marker("kafka_topic")
    options = {"partitions": 1, "config": {}, **(marker.kwargs if marker else {})}
    unknown = options.keys() - {"partitions", "config"}
    if unknown or (marker and marker.args):
        pytest.fail("@pytest.mark.kafka_topic accepts only partitions=… and config={…}", pytrace=False)
    return options["partitions"], {key: as_property(value) for key, value in options["config"].items()}


@pytest.fixture
def kafka_producer(kafka_broker: Broker) -> Iterator[Producer]:
    """A producer for the session's broker, flushed at the end of the test."""
    from confluent_kafka import Producer

    with Producer({"bootstrap.servers": kafka_broker.bootstrap_servers}) as producer:
        yield producer


@pytest.fixture
def kafka_consumer(kafka_broker: Broker, kafka_topic: str) -> Iterator[Consumer]:
    """A consumer with its own group that reads the test's topic from the beginning."""
    from confluent_kafka import Consumer

    settings = {"bootstrap.servers": kafka_broker.bootstrap_servers, "auto.offset.reset": "earliest"}
    with Consumer({**settings, "group.id": f"{kafka_topic}-group"}) as consumer:
        consumer.subscribe([kafka_topic])
        yield consumer


# -- simulated clusters

_SIMULATION_OPTIONS = frozenset({"brokers", "seed", "seeds", "config", "limit_s"})


class _ClusterToBe:
    """In the place of the cluster until the test runs."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        pytest.fail(
            f"simulated_kafka.{name}: the cluster exists only inside the test, not in its fixtures", pytrace=False
        )


@pytest.fixture
def simulated_kafka(request: pytest.FixtureRequest) -> _ClusterToBe:
    """A `moldau.testing.simulation.SimulatedKafka` for an `async def` test, which runs inside the simulation."""
    if not getattr(request.node, "runs_in_simulation", False):
        pytest.fail("a test with the fixture simulated_kafka has to be an async function", pytrace=False)
    marker = request.node.get_closest_marker("simulated_kafka")
    options = {**(marker.kwargs if marker else {}), **getattr(request, "param", {})}
    if options.keys() - _SIMULATION_OPTIONS or (marker and marker.args):
        allowed = ", ".join(f"{name}=…" for name in sorted(_SIMULATION_OPTIONS))
        pytest.fail(f"@pytest.mark.simulated_kafka accepts only {allowed}", pytrace=False)
    return _ClusterToBe(options)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each seed."""
    marker = metafunc.definition.get_closest_marker("simulated_kafka")
    if marker and "seeds" in marker.kwargs and "simulated_kafka" in metafunc.fixturenames:
        from moldau.errors import SimulationError
        from moldau.testing.simulation.stories import checked_seeds

        try:
            seeds = checked_seeds(marker.kwargs["seeds"])
        except SimulationError:
            return  # the test fails with it; the other tests of the file run
        runs = {f"seed={seed}": {"seed": seed, "seeds": None} for seed in seeds}
        metafunc.parametrize("simulated_kafka", runs.values(), ids=runs.keys(), indirect=True)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Makes plain functions of the tests that run in a simulation, before plugins for asyncio see them."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        is_simulated = isinstance(item, pytest.Function) and "simulated_kafka" in item.fixturenames
        if is_simulated and inspect.iscoroutinefunction(item.obj):
            item.runs_in_simulation = True
            item.obj = _simulated(item, item.obj)
    return made


def _simulated(item: pytest.Function, function: Callable[..., Any]) -> Callable[..., None]:
    def run(**fixtures: Any) -> None:
        __tracebackhide__ = True
        from moldau.testing.simulation import SimulatedKafka, simulate
        from moldau.testing.simulation.stories import pytest_id

        cluster_to_be: _ClusterToBe = fixtures["simulated_kafka"]
        test = getattr(item.instance, item.originalname) if item.cls else function

        async def story(cluster: SimulatedKafka) -> None:
            __tracebackhide__ = True
            await test(**{**fixtures, "simulated_kafka": cluster})

        test_id = pytest_id.set(item.nodeid)
        try:
            simulate(story, **cluster_to_be._options)
        finally:
            pytest_id.reset(test_id)

    return run
