"""`moldau spark-archive`: the archive of Spark's classes that lets sessions of `moldau.spark` start faster."""

from __future__ import annotations

from collections.abc import Sequence

from moldau.cli.common import CommandParser, run


def main(argv: Sequence[str] | None = None, prog: str = "moldau spark-archive") -> int:
    parser = CommandParser(
        prog,
        "Make the archive of Spark's classes with which moldau.spark.session() starts in half the time, or delete all\n"
        "archives. One takes half a minute and 160 MB in ~/.cache/moldau (or $XDG_CACHE_HOME/moldau). Make one again\n"
        "after an upgrade of Java or Spark; the two newest are kept.",
        "{prog} make\n{prog} delete",
    )
    parser.add_argument("action", choices=("make", "delete"))
    arguments = parser.parse_args(argv)
    return run(prog, _make if arguments.action == "make" else _delete)


def _make() -> int:
    from moldau.spark.startup.class_archive import archive_path, make_archive
    from moldau.spark.startup.java import find_java

    java = find_java()
    archive = archive_path(java)
    if not archive.exists():
        print(f"making the archive of Spark's classes for Java {java.version} (once, about half a minute)", flush=True)
        make_archive(java)
    print(archive)
    return 0


def _delete() -> int:
    from moldau.spark.startup.class_archive import archives

    for archive in archives():
        archive.unlink(missing_ok=True)
        print(f"deleted {archive}")
    return 0
