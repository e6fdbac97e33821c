"""The facts without which a number means nothing: machine, versions, date."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import confluent_kafka
import psutil


def cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def java_version() -> str | None:
    try:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stderr.splitlines()[0] if answer.stderr else None


def package_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> dict[str, object]:
    memory = psutil.virtual_memory()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory.total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "java": java_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent_kafka": package_version("confluent-kafka"),
        "uvloop": package_version("uvloop"),
        "pyspark": package_version("pyspark"),
        "pyarrow": package_version("pyarrow"),
    }


class Neighbours:
    """How much of the machine other processes took meanwhile: numbers of a busy machine are noise."""

    def __init__(self) -> None:
        self._started = time.perf_counter()
        self._others_before_s = _busy_cpu_s() - _own_cpu_s()

    def cores(self) -> float:
        """Cores taken by others on average. To be asked once all servers and clients have ended."""
        others_s = _busy_cpu_s() - _own_cpu_s() - self._others_before_s
        return max(others_s / (time.perf_counter() - self._started), 0.0)


def _busy_cpu_s() -> float:
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def _own_cpu_s() -> float:
    """Of the runner and of every server and client that has ended."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
