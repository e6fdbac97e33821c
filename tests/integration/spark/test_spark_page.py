"""The examples of docs/spark.md run as they are printed: all of them as one program with one broker and one session."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.spark.scripts import output_of, start_script

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
BLOCKS = re.findall(r"^```(\S*)\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_the_page_has_python_only_so_that_all_its_examples_run_here() -> None:
    assert {language for language, _ in BLOCKS} == {"python"}


@pytest.mark.timeout(300)  # the whole pipeline once: 106 s on a very busy machine
def test_the_examples_print_what_they_state(tmp_path: Path) -> None:
    program = "\n".join(code for _, code in BLOCKS)
    stated = "".join(f"{line}\n" for line in re.findall(r"# → ?(.*)", program))
    output, complaints = output_of(start_script(program, tmp_path), within_s=280)
    assert output == stated
    assert re.fullmatch(r"1 record could not be decoded .* expected an object, found 3\n", complaints)
