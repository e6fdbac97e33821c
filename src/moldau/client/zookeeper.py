"""Where an ensemble says the brokers are: `/brokers/ids/<id>`, as Kafka kept it before it had a quorum of its own."""

from __future__ import annotations

import json
from typing import Any

from moldau.errors import ConfigError, ErrorCode, KafkaError

_TIMEOUT_S = 10.0


def brokers_at(connect: str) -> str:
    """The bootstrap servers of the cluster at `host:2181[,…][/chroot]`."""
    try:
        from kazoo.client import KazooClient
        from kazoo.exceptions import KazooException, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError
    except ImportError:
        raise ConfigError(
            "--zookeeper needs the package kazoo: run pip install '.[zookeeper]' in a checkout of Moldau"
        ) from None
    ensemble = KazooClient(hosts=connect, read_only=True)
    try:
        ensemble.start(timeout=_TIMEOUT_S)
        ids = sorted(ensemble.get_children("/brokers/ids"), key=int)
        servers = [server for each in ids if (server := _address(ensemble.get(f"/brokers/ids/{each}")[0]))]
    except NoNodeError:
        servers = []
    except (KazooException, KazooTimeoutError) as error:
        message = f"no ZooKeeper answered at {connect}: {error or type(error).__name__}"
        raise KafkaError(ErrorCode.NETWORK_EXCEPTION, message) from error
    finally:
        ensemble.stop()
        ensemble.close()
    if not servers:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, f"no broker is registered in the ZooKeeper at {connect}")
    return ",".join(servers)


def _address(registration: bytes) -> str | None:
    """The first address of `{"endpoints": ["PLAINTEXT://host:port"], "host": …, "port": …}` that needs no secrets."""
    try:
        facts: dict[str, Any] = json.loads(registration)
    except ValueError:
        return None
    plain = [str(each) for each in facts.get("endpoints", ()) if str(each).startswith("PLAINTEXT://")]
    if plain:
        return plain[0].partition("://")[2]
    if facts.get("host") and int(facts.get("port", -1)) > 0:
        return f"{facts['host']}:{facts['port']}"
    others = [str(each).partition("://")[2] for each in facts.get("endpoints", ())]
    return others[0] if others else None
