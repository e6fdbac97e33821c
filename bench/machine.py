"""The facts without which a number means nothing: machine, versions, date."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
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
        "load_average_before": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "java": java_version(),
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent_kafka": package_version("confluent-kafka"),
        "uvloop": package_version("uvloop"),
    }
