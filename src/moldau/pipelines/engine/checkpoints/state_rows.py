"""How many rows of state a checkpoint holds: open windows, groups, rows that wait for their counterpart in a join."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


def state_rows(spark: SparkSession, checkpoint: str) -> int | None:
    """After the last batch that was finished. None if Spark cannot read the state."""
    try:
        _ = spark.streams  # registers what readers of state ask for, as the first query of a session does
        found = spark.read.format("state-metadata").load(checkpoint).collect()
        operators = {row["operatorId"]: row for row in found}
        readers = (spark.read.format("statestore").options(**options) for options in _stores(operators))
        return sum(reader.load(checkpoint).count() for reader in readers)
    except Exception:  # of Spark: no batch was finished, or a file is missing
        logger.debug("cannot read the state in %s", checkpoint, exc_info=True)
        return None


def _stores(operators: dict[int, Any]) -> Iterator[dict[str, str]]:
    """Options of Spark's reader for all that an operator keeps."""
    for number, row in operators.items():
        if row["operatorName"] == "symmetricHashJoin":
            parts = [{"joinSide": side} for side in ("left", "right")]
        elif row["operatorName"].startswith("transformWithState"):
            variables = json.loads(row["operatorProperties"])["stateVariables"]
            parts = [{"stateVarName": variable["stateName"]} for variable in variables]
        else:
            parts = [{}]
        yield from ({"operatorId": str(number), **part} for part in parts)
