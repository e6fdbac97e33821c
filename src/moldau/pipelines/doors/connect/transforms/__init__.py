"""Single message transforms as column expressions: Apache Kafka's 16, its predicates, and Debezium's unwrapping.

`tables` lists them, `chaining` makes steps of a connector's configuration. `records` has what a transform is, and how
one with a predicate leaves other records as they are.
"""

from moldau.pipelines.doors.connect.transforms.chaining import chain, problems
from moldau.pipelines.doors.connect.transforms.tables import PREDICATES, TRANSFORMS

PLUGINS = (*TRANSFORMS, *PREDICATES)

__all__ = ["PLUGINS", "PREDICATES", "TRANSFORMS", "chain", "problems"]
