"""Client processes of the bench: none can hold up a run for ever."""

from __future__ import annotations

import pytest

from bench import drive
from bench.drive import Client, ClientError


def test_a_client_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "JOB_TIMEOUT_S", 1)
    # It is never told to go, so it has no result.
    with (
        pytest.raises(ClientError, match="the client of job 'embedded_starts' did not end within 1 s"),
        Client("embedded_starts", {}, None, print) as client,
    ):
        client.result()


def test_lines_about_progress_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.drive.subprocess.Popen", lambda *_, **__: _Talkative())
    said: list[str] = []
    with Client("job", {}, None, said.append) as client:
        assert client.result() == {"seconds": 1}
    assert said == ["  pass 1 of 2", "  pass 2 of 2"]


class _Talkative:
    def __init__(self) -> None:
        lines = ["ready\n", "progress pass 1 of 2\n", "progress pass 2 of 2\n", '{"seconds": 1}\n']
        self.stdout = self
        self.readline = iter(lines).__next__

    def terminate(self) -> None:
        pass

    def communicate(self, timeout: float | None = None) -> None:
        pass
