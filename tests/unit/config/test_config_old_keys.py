"""Files from before `listeners`: host and port apart."""

from __future__ import annotations

import pytest

from moldau.config.broker import BrokerConfig
from moldau.errors import ConfigError


def listeners(**old: str) -> tuple[str, str, list[str]]:
    props = {name.replace("_", "."): value for name, value in old.items()}
    config, warnings = BrokerConfig.from_properties(props)
    told = ",".join(map(str, config.advertised_listeners))
    return ",".join(map(str, config.listeners)), told, warnings


@pytest.mark.parametrize(
    ("old", "listening", "advertised"),
    [
        ({"port": "9093"}, "PLAINTEXT://127.0.0.1:9093", "PLAINTEXT://127.0.0.1:9093"),
        ({"host_name": "db1"}, "PLAINTEXT://db1:9092", "PLAINTEXT://db1:9092"),
        ({"host_name": "db1", "port": "1"}, "PLAINTEXT://db1:1", "PLAINTEXT://db1:1"),
        ({"advertised_host_name": "web"}, "PLAINTEXT://127.0.0.1:9092", "PLAINTEXT://web:9092"),
        (
            {"port": "9093", "host_name": "0.0.0.0", "advertised_host_name": "web", "advertised_port": "80"},
            "PLAINTEXT://0.0.0.0:9093",
            "PLAINTEXT://web:80",
        ),
    ],
)
def test_they_are_read_as_the_listeners_they_stand_for(old: dict[str, str], listening: str, advertised: str) -> None:
    found = listeners(**old)
    assert found[:2] == (listening, advertised)
    assert all("are deprecated: using" in warning for warning in found[2])
    assert found[2]


def test_listeners_win_and_the_old_keys_have_no_effect_beside_them() -> None:
    assert listeners(port="1", listeners="PLAINTEXT://a:2") == (
        "PLAINTEXT://a:2",
        "PLAINTEXT://a:2",
        ["configuration keys without effect: port"],
    )


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="port from 0 to 65535"):
        listeners(port="99999")
