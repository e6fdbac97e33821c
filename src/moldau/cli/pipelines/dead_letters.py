"""`moldau pipeline dead-letters list|show|redrive FILE`: records that a pipeline could not process, without Spark."""

from __future__ import annotations

import argparse
import base64
from collections import defaultdict
from collections.abc import Callable, Sequence

from moldau.cli.common import CommandParser, print_json, print_table, run
from moldau.cli.pipelines.overrides import add_bootstrap_server, overridden
from moldau.errors import CommandError
from moldau.pipelines.doors.yaml_file import load_pipeline
from moldau.pipelines.engine.bad_records.dead_letter_topic import (
    REDRIVEN_MAX,
    DeadLetterTopic,
    Letter,
    Redriven,
    dead_letter_topics,
)
from moldau.pipelines.model.references import hidden

_REASON_LENGTH = 80


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline dead-letters") -> int:
    parser = CommandParser(
        prog,
        "Records that a pipeline could not process: list them by reason, show one in full, or send them back to their\n"
        "topics. What was sent back is remembered, so a second redrive sends nothing twice.",
        "{prog} list page-counts.yaml\n"
        "{prog} show page-counts.yaml --offset 0:12\n"
        "{prog} redrive page-counts.yaml --reason 'cannot be cast' --limit 10",
    )
    parser.add_argument("action", choices=["list", "show", "redrive"], metavar="list|show|redrive")
    parser.add_argument("file", metavar="FILE", help="the file of the pipeline")
    parser.add_argument("--reason", metavar="TEXT", help="only those whose reason contains this text")
    parser.add_argument(
        "--offset", metavar="PARTITION:OFFSET", action="append", help="only this dead letter; may be repeated"
    )
    parser.add_argument("--limit", metavar="COUNT", type=_count, help="redrive: so many at most")
    parser.add_argument("--to", metavar="TOPIC", help="redrive: send them to this topic instead")
    add_bootstrap_server(parser)
    parser.add_json()
    arguments = parser.parse_args(argv)
    for option in ("limit", "to"):
        if getattr(arguments, option) is not None and arguments.action != "redrive":
            parser.error(f"--{option} is for redrive")
    actions = {"list": _list, "show": _show, "redrive": _redrive}

    def work() -> int:
        pipeline = overridden(load_pipeline(arguments.file), arguments)
        return actions[arguments.action](dead_letter_topics(pipeline), arguments)

    return run(prog, work)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected a whole number, 1 or more")
    return int(text)


def _chosen(arguments: argparse.Namespace) -> Callable[[Letter], bool]:
    reason, places = (arguments.reason or "").lower(), arguments.offset
    return lambda letter: reason in letter.reason.lower() and (places is None or letter.place in places)


def _letters(topics: Sequence[DeadLetterTopic], arguments: argparse.Namespace) -> list[Letter]:
    return [letter for topic in topics for letter in topic.letters() if _chosen(arguments)(letter)]


def _list(topics: Sequence[DeadLetterTopic], arguments: argparse.Namespace) -> int:
    groups: dict[tuple[str, str], list[Letter]] = defaultdict(list)
    for letter in _letters(topics, arguments):
        groups[letter.reason, letter.origin_name].append(letter)
    rows = [
        {
            "reason": hidden(reason),
            "origin": hidden(origin),
            "count": len(found),
            "redriven": sum(letter.is_done for letter in found),
            "first": found[0].place,
            "last": found[-1].place,
        }
        for (reason, origin), found in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]
    if arguments.json:
        print_json(rows)
        return 0
    if rows:
        shown = [
            (row["count"], row["redriven"], row["origin"], row["first"], _short(str(row["reason"]))) for row in rows
        ]
        print_table(("COUNT", "REDRIVEN", "ORIGIN", "FIRST", "REASON"), shown)
    count = sum(map(len, groups.values()))
    done = sum(letter.is_done for found in groups.values() for letter in found)
    print(f"{count} dead letters in topic {hidden(topics[0].topic)}, {count - done} not redriven")
    return 0


def _show(topics: Sequence[DeadLetterTopic], arguments: argparse.Namespace) -> int:
    letters = _letters(topics, arguments)
    letter = next((one for one in letters if not one.is_done), letters[0] if letters else None)
    if letter is None:
        raise CommandError(f"topic {hidden(topics[0].topic)} has no such dead letter (see `list`)")
    if arguments.json:
        print_json(
            {
                "place": letter.place,
                "redriven": letter.is_done,
                "timestamp": letter.timestamp.isoformat(),
                "facts": {name: hidden(text) for name, text in letter.facts.items()},
                "key": _encoded(letter.key),
                "value": _encoded(letter.value),
                "headers": [{"key": one["key"], "value": _encoded(one["value"])} for one in letter.own_headers],
            }
        )
        return 0
    state = "redriven" if letter.is_done else "not redriven"
    print(f"dead letter {letter.place} of {hidden(topics[0].topic)}, {state}")
    print(f"reason     {hidden(letter.reason)}")
    for name, text in letter.facts.items():
        print(f"           {name}: {hidden(text)}")
    print(f"timestamp  {letter.timestamp.isoformat()}")
    print(f"key        {_readable(letter.key)}")
    print(f"value      {_readable(letter.value)}")
    for one in letter.own_headers:
        print(f"header     {one['key']}: {_readable(one['value'])}")
    return 0


def _redrive(topics: Sequence[DeadLetterTopic], arguments: argparse.Namespace) -> int:
    limit = arguments.limit or REDRIVEN_MAX
    results: list[Redriven] = []
    for topic in topics:
        if limit > 0:
            results.append(topic.redrive(_chosen(arguments), arguments.to, limit))
            limit -= results[-1].sent
    names = ("sent", "repeated", "without_topic", "of_files", "left")
    totals = {name: sum(getattr(result, name) for result in results) for name in names}
    if arguments.json:
        print_json(totals)
        return 0
    where = f"topic {arguments.to}" if arguments.to else "their topics"
    print(f"{totals['sent']} records sent to {where}")
    if totals["repeated"]:
        print(f"{totals['repeated']} more dead letters are of records that were sent already")
    if totals["without_topic"]:
        print(f"{totals['without_topic']} are rows of steps, which have no topic to go back to: choose one with --to")
    if totals["of_files"]:
        print(f"{totals['of_files']} came from a file, not from a topic: choose a topic with --to")
    if totals["left"]:
        print(f"{totals['left']} are left: run the command again")
    return 0


def _short(text: str) -> str:
    return text if len(text) <= _REASON_LENGTH else f"{text[: _REASON_LENGTH - 1]}…"


def _readable(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"(hex) {data.hex()}"


def _encoded(data: bytes | None) -> dict[str, str] | None:
    """Text where it is text, else base64."""
    if data is None:
        return None
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}
