"""A good file with one mistake: every mistake gives a clear message with its line and column, never a traceback.

The mistakes are in `bad_files/mistakes.txt`.
"""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

from moldau.pipelines.doors.yaml_file import read_pipeline

FILES = Path(__file__).parent / "bad_files"
GOOD = (FILES / "good.yaml").read_text("utf-8")
BLOCK = re.compile(r"^- (?P<old>.*)\n\+ ?(?P<new>.*)\n= (?P<answer>.+)$", re.MULTILINE)
MISTAKES = [
    (found["old"].replace(r"\n", "\n"), found["new"].replace(r"\n", "\n").replace(r"\t", "\t"), found["answer"])
    for found in BLOCK.finditer((FILES / "mistakes.txt").read_text("utf-8"))
]
NEW = ("", "", "\n", "  ", ": ", "- ", "[", "}", "'", '"', "&a ", "*a", "|", "é", "null", "7")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(FILES / "my_steps.py", tmp_path)
    return tmp_path


def answers(folder: Path, text: str) -> list[str]:
    path = folder / "counts.yaml"
    path.write_text(text, "utf-8")
    return [str(problem).removeprefix(f"{path}:") for problem in read_pipeline(path)[1]]


def test_the_good_file_is_good(folder: Path) -> None:
    assert answers(folder, GOOD) == []


def test_there_are_a_hundred_mistakes_or_more() -> None:
    assert len({(old, new) for old, new, _ in MISTAKES}) >= 100
    assert [old for old, _, _ in MISTAKES if old not in GOOD] == []


@pytest.mark.parametrize(("old", "new", "answer"), MISTAKES, ids=[new or f"no {old}" for old, new, _ in MISTAKES])
def test_every_mistake_gives_one_clear_answer(folder: Path, old: str, new: str, answer: str) -> None:
    (found,) = answers(folder, GOOD.replace(old, new, 1))
    assert found.startswith(answer)


@pytest.mark.parametrize("seed", range(20))
def test_files_damaged_at_random_give_problems_with_places_and_nothing_worse(folder: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        text = GOOD
        for _ in range(chance.randint(1, 4)):
            at, length = chance.randrange(len(text)), chance.choice((0, 1, 1, 5, 40))
            text = text[:at] + chance.choice(NEW) + text[at + length :]
        for answer in answers(folder, text):
            assert re.match(r"\d+:\d+: (warning: )?\S", answer), answer
