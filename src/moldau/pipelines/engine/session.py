"""The Spark session in which pipelines run: one for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from moldau.config.keys import nearest
from moldau.errors import ConfigError
from moldau.pipelines.engine.queries import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Settings of Spark SQL belong to a query's own session (`start_query`), except for these, which all sessions share.
_OF_ONE_QUERY = "spark.sql."
_SAME_SETTING = 0.9  # names of settings are long, and have much in common
_SHARED = ("spark.sql.extensions", "spark.sql.catalog", "spark.sql.warehouse.dir", "spark.sql.hive")


def session_for(settings: Mapping[str, Settings], master: str | None = None) -> SparkSession:
    """A session with the master and the Spark settings of these pipelines (by name), or the one that runs."""
    import moldau.spark

    return moldau.spark.session(
        app_name=", ".join(settings), master=master or common_master(settings), config=common_config(settings)
    )


def silence(spark: SparkSession) -> None:
    """No log of Spark's: we say what is wrong in a sentence."""
    spark.sparkContext.setLogLevel("OFF")
    silence_query_errors()


def silence_query_errors() -> None:
    """PySpark logs an error of SQL as JSON, with its stack, before it raises it."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def unknown_settings(spark: SparkSession, names: Iterable[str]) -> dict[str, str | None]:
    """Which of these settings Spark SQL does not know, with the one that was probably meant."""
    jvm: Any = spark._jvm
    find = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry
    unknown = [name for name in names if name.startswith(_OF_ONE_QUERY) and find(name) is None]
    known = [row[0] for row in spark.sql("SET -v").collect()] if unknown else []
    return {name: nearest(name, known, cutoff=_SAME_SETTING) for name in unknown if not name.startswith(_SHARED)}


def common_master(settings: Mapping[str, Settings]) -> str:
    masters = {name: str(own.values["master"]) for name, own in settings.items()}
    _refuse_differences("master", masters, "or choose one with --master")
    return next(iter(masters.values()))


def common_config(settings: Mapping[str, Settings]) -> dict[str, object]:
    """Spark settings that have to be known before the session starts."""
    given: dict[str, dict[str, object]] = {}
    for pipeline, own in settings.items():
        for name, value in own.spark.items():
            if not name.startswith(_OF_ONE_QUERY) or name.startswith(_SHARED):
                given.setdefault(name, {})[pipeline] = value
    for name, values in given.items():
        _refuse_differences(name, values)
    return {name: next(iter(values.values())) for name, values in given.items()}


def _refuse_differences(name: str, values: Mapping[str, object], way_out: str = "") -> None:
    (first, value), *others = values.items()
    for other, different in others:
        if different != value:
            raise ConfigError(
                # Without the values: they may be secrets.
                f"pipelines of one run share a Spark session, but {first} and {other} have different values for "
                f"{name}: use the same value, run them separately{', ' + way_out if way_out else ''}"
            )
