"""`kafka-dump-log`: what is inside log segments, indexes, snapshots and checkpoints."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moldau.cli.common import CommandParser, run, warn
from moldau.wire.constants import GROUPS_TOPIC, SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from moldau.cli.records.dump_rows import Decoder, Options, Row

_EXAMPLE = """\
{prog} --files /var/lib/kafka/orders-0/00000000000000000000.log --print-data-log
{prog} --files orders-0/00000000000000000000.index --verify-index-only"""
_LATER = ("--cluster-metadata-decoder", "--remote-log-metadata-decoder")
_STATE_TOPICS = {
    "--offsets-decoder": GROUPS_TOPIC,
    "--transaction-log-decoder": TRANSACTIONS_TOPIC,
    "--share-group-state-decoder": SHARE_STATE_TOPIC,
}
_OPTIONAL_LONGS = ("deleteHorizonMs", "currentTxnFirstOffset")
_HEADINGS = {
    "mismatch": "Mismatches in :{file}",
    "time mismatch": "Found timestamp mismatch in :{file}",
    "out of order": "Found out of order timestamp in :{file}",
    "not found": "The following indexed offsets are not found in the log.",
    "gap": "Non-consecutive offsets in {file}",
}


def main(argv: Sequence[str] | None = None, prog: str = "kafka-dump-log") -> int:
    parser = _parser(prog)
    args = parser.parse_args(argv)
    parser.require(args, "--files")
    for name in _LATER:
        if getattr(args, name.removeprefix("--").replace("-", "_")):
            parser.error(f"{name} is not supported yet")
    args.key_decoder = _decoder(parser, args.key_decoder_class)
    args.value_decoder = _decoder(parser, args.value_decoder_class)
    return run(prog, lambda: _dump(args))


def _parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, "Print log segments, indexes, snapshots and checkpoints.", _EXAMPLE)
    parser.add_argument("--files", metavar="FILE,…", help="the files to print")
    parser.add_flag("--print-data-log", "also print keys and values of the records")
    parser.add_flag("--deep-iteration", "print each record, not only each batch")
    parser.add_flag("--verify-index-only", "check index entries against the log without printing them")
    parser.add_flag("--index-sanity-check", "only run the check that a broker makes on its indexes at startup")
    parser.add_flag("--skip-record-metadata", "print only keys and values of the records")
    parser.add_argument("--max-bytes", metavar="N", type=int, default=2**31 - 1, help="read only this many bytes")
    parser.add_argument("--max-message-size", metavar="N", type=int, help=argparse.SUPPRESS)
    for name in ("--key-decoder-class", "--value-decoder-class"):
        parser.add_argument(
            name,
            metavar="CLASS",
            nargs="?",
            const="StringDecoder",
            help="StringDecoder (the default), LongDecoder, IntegerDecoder or ByteArrayDecoder (as hex)",
        )
    for name, topic in _STATE_TOPICS.items():
        parser.add_argument(
            name, dest="state_topic", action="store_const", const=topic, help=f"decode the records as those of {topic}"
        )
    for name in _LATER:
        parser.add_argument(name, action="store_true", help=argparse.SUPPRESS)
    parser.add_flag("--json", "print one JSON object per line")
    return parser


def _decoder(parser: CommandParser, name: str | None) -> Decoder | None:
    decoders: dict[str, Decoder | None] = {
        "StringDecoder": None,
        "LongDecoder": lambda data: str(struct.unpack(">q", data)[0]),
        "IntegerDecoder": lambda data: str(struct.unpack(">i", data)[0]),
        "ByteArrayDecoder": bytes.hex,
        "DefaultDecoder": bytes.hex,
    }
    short = "StringDecoder" if name is None else name.rpartition(".")[2]
    if short not in decoders:
        parser.error(f"unknown decoder {name}; use one of {', '.join(decoders)}")
    return decoders[short]


def _dump(args: argparse.Namespace) -> int:
    contents = bool(args.print_data_log or args.key_decoder_class or args.value_decoder_class or args.state_topic)
    from moldau.cli.records.dump_rows import Options

    options = Options(
        deep=args.deep_iteration or contents,
        contents=contents,
        metadata=not args.skip_record_metadata,
        max_bytes=args.max_bytes,
        key_decoder=args.key_decoder,
        value_decoder=args.value_decoder,
        state_topic=args.state_topic,
    )
    findings: list[Row] = []
    failed = False
    for name in args.files.split(","):
        path = Path(name.strip())
        if not args.json:
            print(f"Dumping {path}")
        for row in _rows(path, args, options):
            failed = failed or row.kind == "problem" or row.kind in _HEADINGS.keys() - {"gap"}
            if args.json:
                print(json.dumps({"file": str(path), "kind": row.kind, **row.fields}, ensure_ascii=False))
            elif row.kind in _HEADINGS:
                findings.append(row)
            elif row.fields and not (row.kind == "entry" and args.verify_index_only):
                _print(row)
    _print_findings(findings)
    return 1 if failed else 0


def _rows(path: Path, args: argparse.Namespace, options: Options) -> Iterator[Row]:
    from moldau.cli.records import dump_rows as rows

    if not path.exists():
        yield rows.problem(f"{path}: No such file")
    elif path.name == "leader-epoch-checkpoint" or path.name.endswith("-offset-checkpoint"):
        yield from rows.checkpoint_rows(path)
    elif path.suffix == ".log":
        yield rows.note(f"Log starting offset: {rows.base_offset(path)}")
        yield from rows.log_rows(path, options)
    elif path.suffix == ".checkpoint":
        yield from rows.log_rows(path, options)
    elif path.suffix in (".index", ".timeindex") and args.index_sanity_check:
        yield from rows.index_sanity_rows(path)
    elif path.suffix == ".index":
        yield from rows.offset_index_rows(path)
    elif path.suffix == ".timeindex":
        yield from rows.time_index_rows(path)
    elif path.suffix == ".txnindex":
        yield from rows.txn_index_rows(path)
    elif path.suffix == ".snapshot":
        yield from rows.producer_snapshot_rows(path)
    else:
        yield rows.problem(f"Ignoring unknown file {path}")


def _print(row: Row) -> None:
    if row.kind == "note":
        print(row.fields["text"])
    elif row.kind == "problem":
        warn(row.fields["text"])
    else:
        line = " ".join(f"{name}: {_java(name, value)}" for name, value in row.fields.items())
        print(f"| {line}" if row.kind == "record" else line)


def _java(name: str, value: Any) -> str:
    """A value as Java prints it, which is what scripts around Kafka's own tool look for."""
    if name in _OPTIONAL_LONGS:
        return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{','.join(value)}]"
    return str(value)


def _print_findings(findings: list[Row]) -> None:
    """Mismatches come after everything else, grouped by file, on stderr."""
    heading = None
    for row in sorted(findings, key=lambda row: (row.kind, row.fields.get("file", ""))):
        text = _HEADINGS[row.kind].format(**row.fields)
        if text != heading:
            heading = text
            warn(heading)
        if row.kind == "gap":
            warn(f"  {row.fields['first']} is followed by {row.fields['second']}")
        else:
            facts = [f"{name}: {value}" for name, value in row.fields.items() if name != "file"]
            warn("  " + ", ".join(facts).capitalize())
