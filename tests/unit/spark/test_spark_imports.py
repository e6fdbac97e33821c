"""What Python processes load: each step of Spark's planning is one of its own, and should not wait for a compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = {
    "the package": "import moldau.spark",
    "a batch read is planned": """
from moldau.spark.source import MoldauDataSource
source = MoldauDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "topic", "includeHeaders": "true"})
pickle.dumps(source.reader(source.schema()))
""",
    "a stream is read, on the driver": """
from moldau.spark.source import MoldauDataSource
source = MoldauDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "topic"})
pickle.dumps(source.streamReader(source.schema()))
""",
}


@pytest.mark.parametrize("step", LIGHT)
def test_kernels_are_for_tasks_only(step: str) -> None:
    code = f"import pickle, sys\n{LIGHT[step]}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {"numba", "llvmlite", "moldau.spark.fetching", "moldau.spark.columns.kernels"}.isdisjoint(done.stdout.split())
