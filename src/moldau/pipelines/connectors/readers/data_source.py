"""The one data source of all connectors: `ReadRequest.loader(Class)` names the data source that it stands for.

Registering each with the session of a query is not possible: Spark refuses a name that the active session knows, and
does not find it in the new one. This one is found by the name of its package (`pyspark_moldau_pipelines`) in all of
them. The class is sent along, pickled, so it may also be of a user's module, which Spark's workers cannot import.
"""

from __future__ import annotations

import base64
from typing import Any

from pyspark import cloudpickle
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceWriter,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from moldau.errors import ConfigError
from moldau.spark.hang_ups import ignore_hang_ups

FORMAT = "moldau-connector"
_CLASS = "moldau.connector.class"

# Here, since every Python process of Spark that plans or reads with this source imports it.
ignore_hang_ups()


def options_of(source: type[DataSource]) -> dict[str, str]:
    return {_CLASS: base64.b64encode(cloudpickle.dumps(source)).decode()}


class ConnectorDataSource(DataSource):
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if _CLASS not in options:
            raise ConfigError(f'format("{FORMAT}") is for connectors of pipelines: use ReadRequest.loader(Class)')
        self._source: DataSource = cloudpickle.loads(base64.b64decode(options[_CLASS]))(options)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> Any:
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return self._source.streamReader(schema)

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        return self._source.simpleStreamReader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return self._source.writer(schema, overwrite)
