"""The process that Python workers are forked from."""

from __future__ import annotations

import pytest

from moldau.spark.daemon import quiet


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_a_worker_whose_jvm_hung_up_ends_without_a_word(error: type[OSError]) -> None:
    def worker(*_: object) -> int:
        raise error

    assert quiet(worker)("socket", True) == 1


def test_any_other_failure_is_told() -> None:
    def worker(*_: object) -> int:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space"):
        quiet(worker)("socket", True)


def test_a_worker_that_ends_well_is_used_again() -> None:
    assert quiet(lambda *_: 0)("socket", True) == 0
