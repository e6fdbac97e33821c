"""Says in a sentence that files cannot be written: Python, Arrow and Hadoop say which call failed, not what to do."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from moldau.errors import MoldauError

NEEDS_PERSON = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
"""Errors that stay until somebody changes the folder or the pipeline."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_OF_FILES = (*NEEDS_PERSON, *_FULL, errno.ENOENT)
_HINT = "create the folder, or give this user the right to write to it"
# What Hadoop and tasks of Spark say, and what that means.
_SIGNS = {
    "mkdirs failed": "a folder in it cannot be created",
    "permission denied": "Permission denied",
    "accessdenied": "Permission denied",
    "read-only file system": "Read-only file system",
    "not a directory": "Not a directory",
    "no space left": "No space left on device",
}
_PATH = re.compile(r"(?:file:|['\" ])(/[^'\" ]+)")


@contextmanager
def writing_to(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _OF_FILES:  # such as a connection to the JVM
            raise
        raise MoldauError(unwritable(path, error)) from error
    except Exception as error:
        why = _why(path.removeprefix("file://"), str(error))
        if why is None:
            raise
        # Without the cause: Spark sends the text of both, and a stack of Java's would stand before this sentence.
        raise MoldauError(f"cannot write to {path}: {why}: {_HINT}") from None


def unwritable(path: str, error: OSError, hint: str = _HINT) -> str:
    why = os.strerror(error.errno) if error.errno is not None else str(error)
    return f"cannot write to {path}: {why}" + ("" if error.errno in _FULL else f": {hint}")


def _why(path: str, text: str) -> str | None:
    """A task may fail to read files, too, so a line has to name this path, one in it or one above it."""
    for line in text.splitlines():
        paths = [found.rstrip(".,:)") for found in _PATH.findall(line)]
        if any(found.startswith(path) or path.startswith(f"{found}/") for found in paths):
            for sign, meaning in _SIGNS.items():
                if sign in line.lower():
                    return meaning
    return None
