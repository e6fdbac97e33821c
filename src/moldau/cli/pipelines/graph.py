"""`moldau pipeline graph`: sources, steps and sinks as a picture, drawn without Spark and without a broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from moldau.cli.common import CommandParser, run
from moldau.pipelines.doors.graph import mermaid_graph, text_graph
from moldau.pipelines.doors.yaml_file import load_pipelines
from moldau.pipelines.engine.checkpoints.sharing import groups_of_sinks
from moldau.pipelines.model.pipeline import Pipeline

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
    if style == "mermaid":
        text = mermaid_graph(pipelines)
    else:
        text = "\n\n".join("\n".join([text_graph(pipeline), *_shared(pipeline)]) for pipeline in pipelines)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = text.translate(_ASCII).encode("ascii", "replace").decode()
    print(text)
    return 0


def _shared(pipeline: Pipeline) -> Iterator[str]:
    """Sinks that share a query in a new pipeline; `dry-run` knows how it is with an old one."""
    for _, sinks in groups_of_sinks(pipeline, {}):
        if len(sinks) > 1:
            names = ", ".join(sink.name for sink in sinks)
            yield f"\n{names} share a query, which keeps the state of {sinks[0].view} once"
