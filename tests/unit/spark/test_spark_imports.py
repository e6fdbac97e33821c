"""What Python processes load: each step of Spark's planning is one of its own, and should not wait for a compiler."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIGHT = {
    "the package": "import moldau.spark",
    "a batch read is planned": """
from moldau.spark.data_source import MoldauDataSource
source = MoldauDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "topic", "includeHeaders": "true"})
pickle.dumps(source.reader(source.schema()))
""",
    "a read of typed topics is planned": """
from moldau.spark.data_source import MoldauDataSource
servers = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "topic"}
for name, schema in {"json": "a int", "avro": '"long"'}.items():
    source = MoldauDataSource(servers | {"value.format": name, "value.schema": schema})
    pickle.dumps(source.reader(source.schema()))
""",
    "a write is planned": """
from moldau.spark.data_source import MoldauDataSource
from pyspark.sql.types import StructType
source = MoldauDataSource({"kafka.bootstrap.servers": "localhost:1", "topic": "topic"})
pickle.dumps(source.streamWriter(StructType().add("value", "binary"), False))
""",
    "a stream is read, on the driver": """
from moldau.spark.data_source import MoldauDataSource
source = MoldauDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "topic"})
pickle.dumps(source.streamReader(source.schema()))
""",
}


@pytest.mark.parametrize("step", LIGHT)
def test_kernels_are_for_tasks_only(step: str) -> None:
    code = f"import pickle, sys\n{LIGHT[step]}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "moldau.spark" in loaded
    assert not loaded & {"numba", "llvmlite", "moldau.spark.source.fetching", "moldau.spark.columns.kernels"}
