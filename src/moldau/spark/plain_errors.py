"""Errors that begin with what the user has to know.

PySpark sends an error to the JVM as a traceback, and Spark adds a preamble, so the message would be the last of thirty
lines. PySpark omits the traceback if an environment variable says so when it reports the error (the Spark setting
`spark.sql.execution.pyspark.udf.hideTraceback.enabled` sets it). Moldau's errors say what happened and what to do, so a
worker that raises one sets the variable; the worker ends with the report. All other errors keep their tracebacks.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.errors import MoldauError

_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
_OF_A_WORKER = "PYTHON_WORKER_FACTORY_"  # how the variables begin that Spark gives to its Python processes alone

logger = logging.getLogger(__name__)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Around what Spark calls, as a `with` or a decorator. Changes nothing outside of Spark's Python processes."""
    try:
        yield
    except MoldauError:
        if any(name.startswith(_OF_A_WORKER) for name in os.environ):
            logger.debug("an error is sent to Spark", exc_info=True)
            os.environ[_HIDE_TRACEBACK] = "1"
        raise
