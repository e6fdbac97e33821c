"""The pipeline files in the README and in docs/ are valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moldau.pipelines.doors.yaml_file import load_pipeline

ROOT = Path(__file__).parents[3]
FILES = {
    f"{page}-{number}": code
    for page in ("README.md", "docs/pipelines.md")
    for number, code in enumerate(re.findall(r"^```yaml\n(.*?)^```$", (ROOT / page).read_text(), flags=re.M | re.S))
}


def test_both_pages_have_one() -> None:
    assert FILES.keys() == {"README.md-0", "docs/pipelines.md-0"}


@pytest.mark.parametrize("name", FILES)
def test_a_pipeline_of_the_pages_is_valid(name: str, tmp_path: Path) -> None:
    file = tmp_path / "page-counts.yaml"
    file.write_text(FILES[name])
    assert [sink.name for sink in load_pipeline(file).sinks] == ["page_counts"]
