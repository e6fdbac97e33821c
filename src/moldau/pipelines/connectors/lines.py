"""Lines of files: tailed through rotation and truncation as a source, appended exactly once as a sink.

Files are on the machine of Spark's driver; with executors on other machines, they are on a disk that all share.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from moldau.pipelines.connectors.base import BatchSink, Connector, Guarantee, ReadRequest, Request, WriteRequest
from moldau.pipelines.connectors.topic import kafka_options, letter_headers
from moldau.pipelines.model.kinds import BOOLEAN, DURATION, NAMES, choice, names_of, whole
from moldau.pipelines.model.options import Given, Option, OptionTable, Value
from moldau.pipelines.model.places import Problem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_METADATA = {"file": "STRING", "position": "BIGINT"}
_MIB = 1024 * 1024


class LinesConnector(Connector):
    name = "lines"
    summary = "Lines of files, tailed through rotation and truncation; or appended to a file."
    guarantee = Guarantee.EXACTLY_ONCE
    can_share = True
    identity = ("path",)
    writes_alone = True
    source_options = OptionTable.of(
        Option(
            "path", "A file, or several with `*`. It may appear later.", NAMES, required=True, example="/var/log/*.log"
        ),
        Option(
            "format", "text: the column `value`; json: the fields of each line.", choice("text", "json"), default="text"
        ),
        Option(
            "metadata",
            "json: columns besides the fields: file, position.",
            names_of(*_METADATA),
            example="file, position",
        ),
        Option(
            "startingOffsets",
            "Where a new pipeline starts in the files it finds.",
            choice("earliest", "latest"),
            default="earliest",
        ),
        Option("maxBytesPerTrigger", "About how much to read in a micro-batch.", whole(1), default=64 * _MIB),
        Option("max line bytes", "Longer lines are cut.", whole(1), default=_MIB),
        Option(
            "unfinished after",
            "A last line without a line break is read when its file has not changed for this long.",
            DURATION,
            default=60_000,
        ),
        Option(
            "failOnDataLoss",
            "Fail if a file was truncated before all of it was read; by default that is a warning.",
            BOOLEAN,
            default=False,
        ),
    )
    sink_options = OptionTable.of(
        Option(
            "path", "The file to append to. It is created if it does not exist.", required=True, example="out.jsonl"
        ),
        Option("format", "json: all columns; text: the column `value`.", choice("text", "json"), default="json"),
    )
    source_example = "path: /var/log/nginx/access.log"
    sink_example = "path: page-counts.jsonl"

    def check(self, options: Mapping[str, Given], *, is_source: bool) -> Iterable[Problem]:
        if not is_source or options.get("format", Given("text")).value != "text":
            return
        columns = ", ".join(("value", *_METADATA))
        for name in ("metadata", "schema"):
            if name in options:
                yield Problem(
                    f"{name} is for `format: json`: lines of text have the columns {columns}", options[name].place
                )

    def columns(self, options: Mapping[str, Value]) -> str | None:
        if options["format"] == "text":
            return ", ".join(["value STRING", *(f"{name} {kind}" for name, kind in _METADATA.items())])
        metadata = [f"{name} {_METADATA[name]}" for name in options.get("metadata", ())]
        return ", ".join([options["schema"], *metadata]) if "schema" in options else None

    def read(self, request: ReadRequest) -> DataFrame:
        frame = self._load(request, request.options["format"])
        if request.options["format"] == "text":
            return frame
        return frame.select("value.*", *request.options.get("metadata", ()))

    def _load(self, request: ReadRequest, format_name: str) -> DataFrame:
        from moldau.pipelines.connectors.readers.lines import LinesSource, LinesSpec

        options = request.options
        letters = {"errors.tolerance": "skip" if request.skips_bad else "none"}
        if request.dead_letters and format_name == "json":
            letters = {
                "errors.deadletterqueue.topic.name": request.dead_letters,
                "errors.deadletterqueue.headers": json.dumps(letter_headers(request)),
                **kafka_options(request),
            }
        spec = LinesSpec(
            # Absolute, since they are in the checkpoint: the next run may start elsewhere.
            patterns=[os.path.abspath(request.folder / pattern) for pattern in options["path"]],
            format=format_name,
            schema=options.get("schema"),
            is_from_latest=options["startingOffsets"] == "latest",
            batch_bytes_max=options["maxBytesPerTrigger"],
            line_bytes_max=options["max line bytes"],
            unfinished_ms=options["unfinished after"],
            is_loss_failure=options["failOnDataLoss"],
            errors=letters,
        ).with_schema()
        return request.loader(LinesSource).options(spec=json.dumps(vars(spec))).load()

    def write(self, request: WriteRequest) -> BatchSink:
        from moldau.pipelines.connectors.writers.appended_file import AppendedFile

        file = AppendedFile(str(request.folder / request.options["path"]))
        return BatchSink(file.write, rows=lambda rows: _as_lines(rows, request.options["format"]))

    def prepare(self, request: Request) -> None:
        if isinstance(request, WriteRequest):
            from moldau.pipelines.connectors.writers.unwritable import writing_to

            path = request.folder / request.options["path"]
            with writing_to(str(path)):
                path.parent.mkdir(parents=True, exist_ok=True)


def _as_lines(rows: DataFrame, format_name: str) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    if format_name == "json":
        return rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value"))
    return rows.select(F.col("value").cast("string").alias("value"))
