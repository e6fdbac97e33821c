"""Settings on the command line, in place of those in the files: the same for all commands that need them."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

from moldau.cli.common import CommandParser
from moldau.pipelines.model.common_options import AVAILABLE_NOW
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline


def add_bootstrap_server(parser: CommandParser) -> None:
    parser.add_argument(
        "--bootstrap-server", metavar="HOST:PORT,…", help="brokers, instead of kafka.bootstrap.servers of the files"
    )


def add_overrides(parser: CommandParser) -> None:
    add_bootstrap_server(parser)
    parser.add_argument("--master", help="Spark's master, instead of the files' (local[*], spark://…, yarn, k8s://…)")
    parser.add_argument("--checkpoint", metavar="DIR", help="folder for checkpoints, instead of the files'")


def overridden(pipeline: Pipeline, arguments: argparse.Namespace) -> Pipeline:
    """The pipeline with what the command line says in place of its settings."""
    said = vars(arguments)
    checkpoint = said.get("checkpoint")
    given = {
        "kafka.bootstrap.servers": said.get("bootstrap_server"),
        "master": said.get("master"),
        "checkpoint": checkpoint and os.path.abspath(checkpoint),
        "trigger": AVAILABLE_NOW if said.get("available_now") else None,
    }
    ours = {name: Given(value) for name, value in given.items() if value is not None}
    return replace(pipeline, settings={**pipeline.settings, **ours})
