"""The fixture `simulated_kafka` and its marker, in a pytest of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = """
import pytest

@pytest.mark.simulated_kafka(seeds=range(2), brokers=1)
async def test_seeds(simulated_kafka, tmp_path):
    assert len(simulated_kafka.brokers) == 1

class TestMethods:
    def setup_method(self):
        self.topic = "orders"

    @pytest.mark.simulated_kafka(brokers=1)
    async def test_method(self, simulated_kafka):
        await simulated_kafka.create_topic(self.topic)

@pytest.mark.simulated_kafka(broker=1)
async def test_misspelt(simulated_kafka):
    pass

@pytest.mark.simulated_kafka(seeds=[17], brokers=1)
async def test_fails(simulated_kafka):
    assert not simulated_kafka.brokers

@pytest.mark.simulated_kafka(seeds=5)
async def test_one_seed(simulated_kafka):
    pass

def test_plain(simulated_kafka):
    pass

@pytest.fixture
def servers(simulated_kafka):
    return simulated_kafka.bootstrap_servers

async def test_in_a_fixture(servers, simulated_kafka):
    pass
"""


@pytest.mark.parametrize("options", [("-p", "no:asyncio"), ("-o", "asyncio_mode=auto")])
def test_the_fixture_works_with_and_without_pytest_asyncio(
    options: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    module = tmp_path / f"{tmp_path.name}.py"  # imported into this process, so each needs a name of its own
    module.write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytest.main(
        ["-q", "-p", "no:cacheprovider", "-rA", "-W", "ignore", *options, "--rootdir", str(tmp_path), str(module)]
    )
    printed = capfd.readouterr().out
    assert "2 failed, 3 passed, 3 errors" in printed
    assert f' pytest "{module.name}::test_fails[seed=17]"' in printed
    assert "expected several, such as range(5); for one use seed=5" in printed
    assert f"{module.name}::test_seeds[seed=1]" in printed
    assert "@pytest.mark.simulated_kafka accepts only brokers=…, config=…, limit_s=…, seed=…, seeds=…" in printed
    assert "a test with the fixture simulated_kafka has to be an async function" in printed
    assert "simulated_kafka.bootstrap_servers: the cluster exists only inside the test" in printed
