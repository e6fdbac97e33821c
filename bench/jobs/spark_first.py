"""The first result of a one-shot Spark job: from the start of its process to its first printed line."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

from bench.jobs.job import Parameters, Ready

# A job that takes longer hangs; both take seconds.
TIMEOUT_S = 120


def spark_first_result(parameters: Parameters, ready: Ready) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.spark_once", json.dumps(parameters)]
    ready()
    started = time.perf_counter()
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = time.perf_counter() - started
        _, complaint = process.communicate(timeout=TIMEOUT_S)
    if process.returncode != 0 or line.strip() != str(parameters["records"]):
        raise RuntimeError(f"the job answered {line!r} where {parameters['records']} was due: {complaint[-2000:]}")
    return {"seconds": seconds}
