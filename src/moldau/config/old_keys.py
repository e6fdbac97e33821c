"""Deprecated keys from before `listeners`: separate hosts and ports. They are converted to listeners."""

from __future__ import annotations

from collections.abc import Mapping

OLD_LISTENER_KEYS = ("host.name", "port", "advertised.host.name", "advertised.port")
_DEFAULT_HOST, _DEFAULT_PORT = "127.0.0.1", "9092"


def with_listeners(props: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The properties with the deprecated keys converted to listeners, and a warning for each listener added.

    As in Kafka, `listeners` and `advertised.listeners` win where they are set.
    """
    told = []
    result = dict(props)
    host = props.get("host.name", "").strip()
    port = props.get("port", "").strip()
    advertised_host = props.get("advertised.host.name", "").strip()
    advertised_port = props.get("advertised.port", "").strip()
    if (host or port) and "listeners" not in props:
        result["listeners"] = f"PLAINTEXT://{host or _DEFAULT_HOST}:{port or _DEFAULT_PORT}"
        told.append(f"host.name and port are deprecated: using listeners={result['listeners']}")
    if (advertised_host or advertised_port) and "advertised.listeners" not in props:
        where = f"{advertised_host or host or _DEFAULT_HOST}:{advertised_port or port or _DEFAULT_PORT}"
        result["advertised.listeners"] = f"PLAINTEXT://{where}"
        told.append(
            "advertised.host.name and advertised.port are deprecated: "
            f"using advertised.listeners={result['advertised.listeners']}"
        )
    return result, told


def is_read(name: str, props: Mapping[str, str]) -> bool:
    """Whether the old key `name` means something beside the others."""
    if name not in OLD_LISTENER_KEYS:
        return False
    return ("advertised.listeners" if name.startswith("advertised.") else "listeners") not in props
