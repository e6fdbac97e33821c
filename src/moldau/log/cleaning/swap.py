"""Putting a cleaned segment in the place of those it was made from, so that a crash at any point loses nothing.

    0. the producer snapshot at the start forgets open transactions: all of them have ended since, and the marker
       that would tell may be gone
    1. index, time index, transaction index: `.cleaned` → `.swap`
    2. log: `.log.cleaned` → `.log.swap`            from here on the cleaned segment is the truth
    3. the old segments' files → `.deleted`
    4. index, time index, transaction index: `.swap` → final name
    5. log: `.log.swap` → `.log`

A start that finds `.log.swap` goes on from step 3; indexes in `.swap` beside a `.log.cleaned` came before step 2, so
they go. A cleaned segment has all four files: beside a `.log.swap`, an index without `.swap` is therefore the cleaned
one, already in place, if there is no `.log` of that name (step 3 is over), and the old one if there is.
The renames are the event loop's, between two requests; what they name was forced to disk by the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from moldau.disk import Disk
from moldau.errors import CorruptFileError, CorruptRecordError
from moldau.log.cleaning.job import Cleaned
from moldau.log.cleaning.plan import LogToClean
from moldau.log.files import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    file_name,
)
from moldau.log.producer_state import without_transactions
from moldau.log.segments.segment import scan
from moldau.log.snapshots import ProducerSnapshots

logger = logging.getLogger(__name__)

_INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)


def swap_in(todo: LogToClean, cleaned: Cleaned) -> bool:
    """False when the log has changed since the plan: its segments stay. StorageError when the disk fails."""
    log = todo.log
    wanted = set(cleaned.replaces)
    old = [segment for segment in todo.segments if segment.base_offset in wanted]
    if todo.is_void or not set(old).issubset(log.segments):
        return False
    disk, directory = log.log_dir.disk, str(log.directory)
    paths = [f"{directory}/{file_name(cleaned.base_offset, suffix)}" for suffix in (*_INDEX_SUFFIXES, LOG_SUFFIX)]
    try:
        if cleaned.base_offset in log.snapshots.offsets:
            _end_transactions(log.snapshots, cleaned.base_offset)
        for path in paths:
            disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    except OSError as error:
        for path in paths[:-1]:
            disk.remove(path + SWAP_SUFFIX)
        raise log.log_dir.storage_error(f"cannot swap in a cleaned segment of {log.name}", error) from error
    try:
        log.move_aside(old)
        for path in paths:
            _put_in_place(disk, path)
        log.segments.replace(old, cleaned.bytes_after)
    except OSError as error:
        # Half of it has its new name: only the next start can tell which half.
        log.log_dir.take_offline(f"cannot swap in a cleaned segment of {log.name}: {error}")
        raise log.log_dir.storage_error(f"cannot swap in a cleaned segment of {log.name}", error) from error
    return True


def _end_transactions(snapshots: ProducerSnapshots, offset: int) -> None:
    """Correct even if the swap fails: records of a transaction after the snapshot open it again."""
    try:
        before = snapshots.read(offset)
        after = without_transactions(before)
    except (CorruptFileError, FileNotFoundError):
        return  # recovery handles it
    if after != before:
        snapshots.rewrite(offset, after)


def _put_in_place(disk: Disk, path: str) -> None:
    swap = path + SWAP_SUFFIX
    if path.endswith(TXN_INDEX_SUFFIX) and not disk.size(swap):
        disk.remove(path)
        disk.remove(swap)  # nothing was aborted: then a segment has no such file
    else:
        disk.rename(swap, path)


def discard(disk: Disk, directory: Path) -> None:
    """Removes the files of a cleaning that was given up."""
    try:
        names = disk.names(directory)
    except FileNotFoundError:
        return  # the whole partition is gone
    for name in names:
        if name.endswith(CLEANED_SUFFIX):
            disk.remove(directory / name)


def finish_swaps(disk: Disk, directory: Path, names: Iterable[str]) -> None:
    """At the start of a broker: completes swaps that a crash interrupted and undoes those that had not begun.

    `names` are all files of the directory.
    """
    present = set(names)
    swaps = {name for name in present if name.endswith(SWAP_SUFFIX) and name.partition(".")[0].isdecimal()}
    for name in sorted(swaps):
        if name.endswith(LOG_SUFFIX + SWAP_SUFFIX):
            _remove_replaced(disk, directory, name, present)
    for name in sorted(swaps, key=lambda name: (name.endswith(LOG_SUFFIX + SWAP_SUFFIX), name)):
        stem = name.partition(".")[0]
        if stem + LOG_SUFFIX + CLEANED_SUFFIX in present:
            disk.remove(directory / name)
        else:
            _put_in_place(disk, str(directory / name.removesuffix(SWAP_SUFFIX)))


def _remove_replaced(disk: Disk, directory: Path, swapped_log: str, present: set[str]) -> None:
    """The old segments that a `.log.swap` stands for, as far as they are still there."""
    base_offset = int(swapped_log.partition(".")[0])
    end_offset = _end_of(disk, directory / swapped_log, base_offset)
    is_old = file_name(base_offset, LOG_SUFFIX) in present
    for name in present:
        stem, _, suffix = name.partition(".")
        if not stem.isdecimal() or "." + suffix not in (LOG_SUFFIX, *_INDEX_SUFFIXES):
            continue
        if base_offset < int(stem) < end_offset or (int(stem) == base_offset and is_old):
            disk.remove(directory / name)


def _end_of(disk: Disk, path: Path, base_offset: int) -> int:
    """The offset after the last batch of a segment file that no log has taken in yet."""
    end_offset = base_offset
    file = disk.open(path)
    try:
        for _, header, _ in scan(file, 0, file.size()):
            end_offset = header.next_offset
    except CorruptRecordError as error:
        logger.warning("%s: %s", path, error.message)
    finally:
        file.close()
    return end_offset
