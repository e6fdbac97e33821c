"""What became of a query since its checkpoint was written, and whether the checkpoint can still be used.

| change | Spark 4.2 | verdict |
|---|---|---|
| filters, projections, steps without state, options | continues | kept, with a warning |
| a source is added, removed, moved, renamed | offsets are kept by name | kept, with a warning |
| a source of the same name reads something else | its offsets are of no use | refused; more topics: kept |
| a stateful operator is added, removed, or another kind | refuses | refused |
| types of keys or of what is kept change | refuses | refused |
| other keys or windows of the same types | puts the old groups under the new keys | refused |
| another kind of join, or of time | continues or refuses | refused |
| other aggregates of the same types | continues with what was aggregated | kept, with a warning |
| delay of a watermark | from the next batch on | kept, with a warning |
| output mode | continues | kept, with a warning |
| another sink | continues | kept, with a warning |
| number of shuffle partitions, state store | keeps the old value | kept, with a warning |

A renamed sink or pipeline is a new query with a new checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from moldau.pipelines.connectors.registry import connector
from moldau.pipelines.engine.checkpoints.identity import Identity, Operator, Part
from moldau.pipelines.engine.checkpoints.key_definitions import without_sources

_MODES = {
    "append": "; groups that were written before are written once more when they are final",
    "complete": "; groups that are no longer in the state are missing from it",
}


_DEAD_LETTERS = (
    ". Its dead letters have a query of their own: a record that only one of the two queries has read by now, and that "
    "the old and the new condition judge differently, is written twice or not at all"
)


class Verdict(StrEnum):
    KEPT = "kept"
    REFUSED = "refused"


@dataclass(frozen=True)
class Change:
    """One sentence, and for a change that is refused what can be done about it."""

    text: str
    verdict: Verdict = Verdict.KEPT
    ways_out: tuple[str, ...] = ()
    owner: str = ""  # whose text has changed: `expectation positive (dead-letter)`


def changes(
    old: Identity,
    new: Identity,
    folder: Path,
    conf: Mapping[str, str],
    wanted: Mapping[str, str],
    *,
    file: str = "FILE",
) -> tuple[Change, ...]:
    """`conf` are the settings in the checkpoint, `wanted` those of the pipeline; `file` is for commands to type."""
    resets = _reset_commands(file, old, new, folder)
    return (
        *_sources(old, new, folder, resets),
        *_state(old, new, resets),
        *_mode(old, new),
        *_sinks(old, new),
        *_settings(conf, wanted),
        *_texts(old, new),
    )


def other_sources(old: Identity, new: Identity) -> Iterator[str]:
    """A sentence for each source that reads something else than its offsets in the checkpoint are of.

    With more topics, too: who gives offsets has to give those of all partitions.
    """
    for name, part in new.sources.items():
        before = old.sources.get(name)
        if before is not None and (before.connector, before.options) != (part.connector, part.options):
            yield f"source {name} read {_shown(before)} and now reads {_shown(part)}"


def _reset_commands(file: str, old: Identity, new: Identity, folder: Path) -> tuple[str, ...]:
    command = f"moldau pipeline reset {file} --query {new.query}"
    same = (connector(part.connector, folder) for name, part in new.sources.items() if name in old.sources)
    committed = f"`{command} --to committed` (continues at the same offsets, without the state)"
    earliest = f"`{command} --to earliest` (processes all records again; what was written stays)"
    if any(other_sources(old, new)) or not all(each.can_start_at for each in same):
        return (earliest,)
    return (committed, earliest)


def _sources(old: Identity, new: Identity, folder: Path, resets: tuple[str, ...]) -> Iterator[Change]:
    gone = {name: part for name, part in old.sources.items() if name not in new.sources}
    for name, part in new.sources.items():
        before = old.sources.get(name)
        if before is None:
            same = [
                other for other, its in gone.items() if (its.connector, its.options) == (part.connector, part.options)
            ]
            again = f" It reads what {same[0]} read, again from its start: sources are known by name." if same else ""
            yield Change(f"source {name} is new: it starts where its options say.{again}")
        elif before.connector != part.connector or not _continues(before, part, folder):
            yield Change(
                f"source {name} read {_shown(before)} and now reads {_shown(part)}: its offsets are not valid there",
                Verdict.REFUSED,
                ("give the source another name: then it starts where its options say", *resets),
            )
        else:
            yield from _moved(name, before, part)
    for name in gone:
        yield Change(f"source {name} is gone: its offsets are forgotten")


def _moved(name: str, before: Part, part: Part) -> Iterator[Change]:
    if before.options != part.options:
        yield Change(f"source {name} read {_shown(before)} and now also reads {_shown(part)}")
    if before.watermark != part.watermark:
        yield Change(
            f"the watermark of {name} was '{before.watermark or 'none'}' and is now '{part.watermark or 'none'}', "
            "from the next batch on; it never goes back"
        )


def _continues(before: Part, part: Part, folder: Path) -> bool:
    return before.options == part.options or connector(part.connector, folder).continues(before.options, part.options)


def _state(old: Identity, new: Identity, resets: tuple[str, ...]) -> Iterator[Change]:
    before, now = [each.kind for each in old.operators], [each.kind for each in new.operators]
    if before != now:
        yield Change(
            f"the query kept state for {_listed(before)} and now needs it for {_listed(now)}", Verdict.REFUSED, resets
        )
        return
    for was, operator in zip(old.operators, new.operators, strict=True):
        what = _difference(was, operator, old.sources.keys() ^ new.sources.keys())
        if what:
            yield Change(f"{operator.kind}: {what}, which does not fit its state", Verdict.REFUSED, resets)
        elif was.detail != operator.detail:
            yield Change(
                f"{operator.kind}: its expressions have changed, not its keys. Groups that are open now mix old and "
                "new results"
            )


def _difference(was: Operator, operator: Operator, renamed: Collection[str]) -> str:
    """Spark refuses other types. Other keys it would take, and put what is in the state under them."""
    if was.essential and was.essential != operator.essential:
        return f"it was {was.essential} and is now {operator.essential}"
    if _are_other_keys(was, operator, renamed):
        return f"the keys were {_keys(was)} and are now {_keys(operator)}"
    for what, before, now in (("keys", was.keys, operator.keys), ("columns", was.values, operator.values)):
        if before != now:
            return f"the types of the {what} in the state were {_listed(before)} and are now {_listed(now)}"
    return ""


def _are_other_keys(was: Operator, operator: Operator, renamed: Collection[str]) -> bool:
    if not was.definitions:  # the checkpoint is from before they were written down
        return False
    # Branches of a union may come and go, and a source may have another name now.
    pairs = [
        ({without_sources(each, renamed) for each in before}, {without_sources(each, renamed) for each in now})
        for before, now in zip(was.definitions, operator.definitions, strict=False)
    ]
    return len(was.definitions) != len(operator.definitions) or any(not before & now for before, now in pairs)


def _keys(operator: Operator) -> str:
    return ", ".join(" or ".join(each) for each in operator.definitions) or "none"


def _mode(old: Identity, new: Identity) -> Iterator[Change]:
    if old.mode != new.mode:
        more = _MODES.get(new.mode, "") if new.operators else ""
        yield Change(f"the output mode was {old.mode} and is now {new.mode}{more}")


def _sinks(old: Identity, new: Identity) -> Iterator[Change]:
    for name, part in new.sinks.items():
        before = old.sinks.get(name)
        if before is None:
            yield Change(f"sink {name} is new: it gets rows from the next batch on")
        elif (before.connector, before.options) != (part.connector, part.options):
            yield Change(
                f"sink {name} wrote to {_shown(before)} and now writes to {_shown(part)}, from the next batch on"
            )
    for name in old.sinks.keys() - new.sinks.keys():
        yield Change(f"sink {name} is gone")


def _settings(conf: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Change]:
    for name, value in wanted.items():
        if name in conf and conf[name] != value:
            yield Change(
                f"{name} stays {conf[name]}: the checkpoint was made with it. {value} takes effect after a reset"
            )


def _texts(old: Identity, new: Identity) -> Iterator[Change]:
    if not old.texts:  # the checkpoint is from before they were written down
        return
    mixed = "; windows and groups that are open now mix old and new results" if new.operators else ""
    for owner in sorted(old.texts.keys() | new.texts.keys()):
        before, now = old.texts.get(owner), new.texts.get(owner)
        kind = owner.partition(" ")[0]
        if before == now or (kind in ("source", "sink") and (before is None or now is None)):  # told above
            continue
        names = sorted(name for name, _ in {*(before or {}).items()} ^ {*(now or {}).items()} if name)
        what = f"{owner}: {', '.join(dict.fromkeys(names))}" if names else owner
        verb = "is gone" if now is None else "is new" if before is None else "has changed"
        more = _DEAD_LETTERS if "(dead-letter)" in owner else ""
        yield Change(f"{what} {verb}, from the next record on{mixed}{more}", owner=owner)


def _shown(part: Part) -> str:
    values = " ".join(part.options.values())
    return f"{part.connector} {values}" if values else part.connector


def _listed(words: object) -> str:
    return ", ".join(str(word) for word in words) or "nothing" if isinstance(words, list | tuple) else str(words)
