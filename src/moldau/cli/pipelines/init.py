"""`moldau pipeline init`: an example pipeline that runs as it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from moldau.cli.common import CommandParser, run
from moldau.errors import CommandError

_DEFAULT = "page-counts.yaml"
_EXAMPLE = Path(__file__).with_name("example.yaml")


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline init") -> int:
    parser = CommandParser(
        prog,
        "Write an example pipeline: made-up page views are counted per page and window, and go to a topic.\n"
        "It runs with nothing but a broker on this machine (`moldau start`). A file that exists is left as it is.",
        "{prog}\n{prog} my-pipeline.yaml",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", default=_DEFAULT, help=f"default: {_DEFAULT}")
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _write(Path(arguments.file), prog.removesuffix(" init")))


def _write(path: Path, prog: str) -> int:
    path = path / _DEFAULT if path.is_dir() else path
    path = path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.") or "page-counts"
    text = _EXAMPLE.read_text("utf-8").replace("page-counts", name)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path} exists and was left as it is; choose another name") from None
    print(f"wrote {path}. Next:")
    commands = {
        f"{prog} test {path}": "run its test, without a broker",
        "moldau start": "start a broker, in another terminal",
        f"{prog} run {path}": "run it; Ctrl-C stops it",
        f"moldau console-consumer --topic {name} --from-beginning": "see what it writes, in another terminal",
    }
    width = max(map(len, commands))
    for command, what in commands.items():
        print(f"  {command.ljust(width)}  # {what}")
    return 0
