"""The documents name only files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_module_that_the_architecture_names_exists() -> None:
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", (ROOT / "ARCHITECTURE.md").read_text())
    places = [ROOT, ROOT / "src" / "moldau", *(ROOT / "src" / "moldau").iterdir()]
    assert [path for path in paths if not any((place / path).exists() for place in places)] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200
