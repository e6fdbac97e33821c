"""What stands where in a pipeline file: the parts, and the words in them that are no options of a connector."""

from __future__ import annotations

from moldau.pipelines.model.kinds import MAPPING, SQL, TEXT, Kind, choice
from moldau.pipelines.model.options import Option, OptionTable
from moldau.pipelines.model.pipeline import Action

MODES = ("append", "update", "complete")

_ROWS = {"type": "array", "items": {"type": "object"}}
_BATCHES = {"type": "array", "items": {"type": "array", "items": {"type": "object"}}}


def _named(values: object) -> Kind:
    return Kind("mapping", MAPPING.convert, {"type": ["object", "null"], "additionalProperties": values})


PARTS = OptionTable.of(
    Option("name", "The pipeline's name; by default the file's, without `.yaml`.", example="page-counts"),
    Option("sources", "What is read, by name. Each is a view that steps can use.", MAPPING, required=True),
    Option(
        "steps", "Queries in SQL or functions in Python, by name. Each is a view that later steps can use.", MAPPING
    ),
    Option(
        "sinks",
        "What is written, by name. Each has a query of its own; those of the same stateful view share one if "
        "they write exactly once and were not apart before.",
        MAPPING,
    ),
    Option("expect", "Conditions that rows of a view should meet, by name.", MAPPING),
    Option("tests", "Given rows and expected rows, for `moldau pipeline test`.", Kind("list", lambda value: value)),
    Option("settings", "Settings of the whole pipeline.", MAPPING),
)

SOURCE = OptionTable.of(
    Option(
        "connector", "What is read: a connector's name, or `module:Class` for your own.", required=True, example="topic"
    ),
)

STEP = OptionTable.of(
    Option("sql", "A query. Its tables are sources, earlier steps, and tables of Spark's with their database.", SQL),
    Option(
        "python",
        "A function, as `module:function`, with the module in the file's folder. It returns a DataFrame; its "
        "parameters are names of sources and earlier steps, which it gets as DataFrames, and `spark`.",
        example="my_steps:mark",
    ),
)

SINK = OptionTable.of(
    Option("from", "The source or step to write; by default the last step, or the only source.", example="counts"),
    Option(
        "connector",
        "Where to write: a connector's name, or `module:Class` for your own.",
        required=True,
        example="topic",
    ),
    Option(
        "mode",
        "Spark's output mode: `append` writes rows once they are final, `update` those that changed, `complete` all.",
        choice(*MODES),
        default="append",
    ),
)

EXPECTATION = OptionTable.of(
    Option("view", "The source or step.", required=True, example="clicks"),
    Option("condition", "SQL. A row fails if it is false or null.", SQL, required=True, example="page IS NOT NULL"),
    Option(
        "action",
        "What happens to a row that fails: `warn` counts it, `drop` removes it, `dead-letter` sends it to the dead "
        "letters, `fail` stops the query.",
        choice(*(action.value for action in Action)),
        default=Action.WARN.value,
    ),
)

TEST = OptionTable.of(
    Option("name", "What is tested.", TEXT, example="counts per minute"),
    Option(
        "given",
        "For each source its rows. A list of lists of rows is several micro-batches.",
        _named({"anyOf": [{"type": "null"}, _ROWS, _BATCHES]}),
        required=True,
    ),
    Option(
        "expect",
        "For views or sinks the rows they must have, in any order. Columns that are not named are not compared.",
        _named({"anyOf": [{"type": "null"}, _ROWS]}),
        required=True,
    ),
)
