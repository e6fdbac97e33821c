"""Option tables: checks with places and the nearest word, conversion, references."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from moldau.errors import ConfigError
from moldau.pipelines.model.common_options import SETTINGS
from moldau.pipelines.model.kinds import BOOLEAN, DURATION, NAMES, NUMBER, choice, duration_ms, whole
from moldau.pipelines.model.options import Given, Option, OptionTable
from moldau.pipelines.model.pipeline import Pipeline, Sink, Source, Step
from moldau.pipelines.model.places import Place
from moldau.pipelines.model.references import resolve
from moldau.pipelines.model.watermark import IDLE_MS, Watermark

PLACE = Place("page.yaml", 3, 5)
TABLE = OptionTable.of(
    Option("topic", "The topic.", required=True, example="clicks"),
    Option("rows", "Most rows.", whole(1), default=10),
    Option("mode", "How.", choice("append", "update")),
    Option("password", "The password.", whole(1), secret=True),
    Option("kafka.*", "Client properties."),
)


def problems(**given: object) -> list[str]:
    options = {name: Given(value, PLACE) for name, value in given.items()}
    return [str(problem) for problem in TABLE.check(options, "source clicks", Place("page.yaml", 1, 1))]


def test_a_misspelt_option_is_told_with_its_place_and_the_nearest_word() -> None:
    assert problems(topic="a", topci="b") == [
        "page.yaml:3:5: source clicks has no option 'topci': did you mean 'topic'?"
    ]


def test_an_option_that_is_needed_and_misspelt_is_one_problem() -> None:
    assert problems(topci="b") == ["page.yaml:3:5: source clicks has no option 'topci': did you mean 'topic'?"]


def test_a_missing_option_is_told_with_an_example() -> None:
    (problem,) = problems()
    assert problem.startswith("page.yaml:1:1: source clicks needs the option 'topic'")
    assert "`topic: clicks`" in problem


def test_a_wrong_value_is_told_with_what_is_allowed() -> None:
    assert problems(topic="a", mode="upsert") == [
        "page.yaml:3:5: source clicks: mode 'upsert': expected append or update"
    ]


def test_a_wrong_secret_is_not_shown() -> None:
    (problem,) = problems(topic="a", password="hunter2")
    assert "hunter2" not in problem


def test_a_reference_passes_every_check_until_it_is_resolved() -> None:
    assert problems(topic="a", rows="${env:ROWS}") == []


def test_a_reference_to_a_wrong_value_is_told_with_its_place_and_without_the_value() -> None:
    with pytest.raises(ConfigError) as raised:
        TABLE.values({"rows": Given("hunter2", PLACE)})
    assert str(raised.value) == "page.yaml:3:5: rows: expected a whole number, 1 or more"


def test_patterns_accept_any_name_with_their_prefix() -> None:
    assert problems(topic="a", **{"kafka.client.id": "me"}) == []
    assert TABLE.find("kafka.") is None


def test_values_are_converted_and_have_defaults() -> None:
    assert TABLE.values({"topic": Given("a")}) == {"topic": "a", "rows": 10}
    assert TABLE.values({"rows": Given("7"), "kafka.client.id": Given("me")}) == {"rows": 7, "kafka.client.id": "me"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10 seconds", 10_000),
        ("1 minute", 60_000),
        ("500ms", 500),
        ("1.5 h", 5_400_000),
        (timedelta(days=1), 86_400_000),
    ],
)
def test_durations_are_written_as_in_spark(text: object, expected: int) -> None:
    assert duration_ms(text) == expected


@pytest.mark.parametrize("value", ["ten seconds", "10", "10 fortnights", 10, "", None, "-1 second"])
def test_what_is_no_duration_is_refused(value: object) -> None:
    assert "expected a duration" in str(DURATION.wrong(value))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (BOOLEAN, "true", True),
        (NUMBER, "1.5", 1.5),
        (NAMES, "a, b", ("a", "b")),
        (NAMES, ["a"], ("a",)),
        (whole(0), "0", 0),
    ],
)
def test_conversions(kind: object, value: object, expected: object) -> None:
    assert kind.convert(value) == expected  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "value"), [(BOOLEAN, "on"), (NUMBER, True), (NAMES, [1]), (whole(1), 0), (whole(0), True)]
)
def test_wrong_values_are_refused(kind: object, value: object) -> None:
    assert kind.wrong(value)  # type: ignore[attr-defined]


def test_watermarks() -> None:
    assert Watermark.parse("at 10 minutes") == Watermark("at", 600_000, IDLE_MS)
    assert Watermark.parse({"column": "at", "delay": "1 s", "idle": "never"}) == Watermark("at", 1000, None)
    for wrong in ("at", "10 minutes", {"delay": "1 s"}, {"column": "at", "late": "1 s"}, 5):
        with pytest.raises(ValueError, match="expected a"):
            Watermark.parse(wrong)


def test_references_come_from_the_environment_and_from_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secrets").write_text("user=ann\npassword=p:w\n")
    monkeypatch.setenv("TOPIC", "clicks")
    given = {
        "a": Given("${env:TOPIC}-${env:MISSING_NAME:x:y}"),
        "b": Given("${file:secrets:password}"),
        "c": Given({"deep": ["${env:TOPIC}", 5]}),
    }
    found = {name: entry.value for name, entry in resolve(given, tmp_path).items()}
    assert found == {"a": "clicks-x:y", "b": "p:w", "c": {"deep": ["clicks", 5]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:NO_SUCH_NAME}", "environment variable NO_SUCH_NAME is not set"),
        ("${file:none:key}", "cannot read"),
        ("${file:secrets:pasword}", "did you mean 'password'?"),
        ("${vault:x}", "expected ${env:NAME}"),
    ],
)
def test_a_reference_that_leads_nowhere_is_told_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "secrets").write_text("password=hunter2\n")
    with pytest.raises(ConfigError) as caught:
        resolve({"a": Given(text, PLACE)}, tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith("page.yaml:3:5: ")
    assert "hunter2" not in str(caught.value)


def test_a_view_needs_what_its_steps_read() -> None:
    pipeline = Pipeline(
        "p",
        sources=(Source("clicks", "topic"), Source("users", "topic"), Source("spare", "topic")),
        steps=(Step("named", sql="", inputs=("clicks", "users")), Step("counts", sql="", inputs=("named",))),
        sinks=(Sink("out", "counts", "topic"),),
    )
    assert [source.name for source in pipeline.sources_of("counts")] == ["clicks", "users"]
    assert pipeline.needed_by("named") == {"named", "clicks", "users"}


def test_the_trigger_is_a_duration_or_available_now() -> None:
    (kind,) = (option.kind for option in SETTINGS if option.name == "trigger")
    assert kind.convert("available now") == "available now"
    assert kind.convert("2 seconds") == 2000
    assert "available now" in str(kind.wrong("once"))
