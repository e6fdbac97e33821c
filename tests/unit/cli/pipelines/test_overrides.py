"""Settings on the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from moldau.cli.pipelines.overrides import overridden
from moldau.pipelines.model.options import Given
from moldau.pipelines.model.pipeline import Pipeline

FILE = Pipeline("p", settings={"master": Given("yarn"), "checkpoint": Given("there")})


def test_what_the_command_line_says_wins_and_the_rest_stays() -> None:
    arguments = argparse.Namespace(bootstrap_server="kafka:9092", master=None, checkpoint="here", available_now=True)
    values = {name: given.value for name, given in overridden(FILE, arguments).settings.items()}
    assert values == {
        "kafka.bootstrap.servers": "kafka:9092",
        "master": "yarn",
        "checkpoint": str(Path.cwd() / "here"),
        "trigger": "available now",
    }


def test_a_command_may_have_some_of_the_options_only() -> None:
    assert overridden(FILE, argparse.Namespace(bootstrap_server=None)) == FILE
