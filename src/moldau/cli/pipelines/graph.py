"""`moldau pipeline graph`: sources, steps and sinks as a picture, drawn without Spark and without a broker."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from moldau.cli.common import CommandParser, run
from moldau.pipelines.doors.graph import mermaid_graph, text_graph
from moldau.pipelines.doors.yaml_file import load_pipelines

_ASCII = str.maketrans({"├": "|", "└": "`", "─": "-", "│": "|", "→": ">", "←": "<", "…": "."})


def main(argv: Sequence[str] | None = None, prog: str = "moldau pipeline graph") -> int:
    parser = CommandParser(
        prog,
        "Show sources, steps and sinks: as a tree for each sink, or as a flowchart for Mermaid, which GitHub and many\n"
        "editors draw. No Spark and no broker is started.",
        "{prog} page-counts.yaml\n{prog} page-counts.yaml --format mermaid",
    )
    parser.add_argument("paths", nargs="*", metavar="FILE|DIR", default=["."], help="files or folders (default: .)")
    parser.add_argument("--format", choices=("text", "mermaid"), default="text", help="default: text")
    arguments = parser.parse_args(argv)
    return run(prog, lambda: _graph(arguments.paths, arguments.format))


def _graph(paths: Sequence[str], style: str) -> int:
    pipelines = load_pipelines(paths)
    text = (
        mermaid_graph(pipelines) if style == "mermaid" else "\n\n".join(text_graph(pipeline) for pipeline in pipelines)
    )
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode("ascii", "replace").decode()
    print(text)
    return 0
