"""The process that cleans: `python -m moldau.log.cleaning.worker`, jobs on stdin, reports on stdout, a line each.

It owns no log: it reads segments that nobody writes to any more and writes `.cleaned` files beside them. It can be
killed at any moment; it ends by itself when its stdin does, that is, when it is not needed or the broker is gone.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from queue import SimpleQueue

from moldau.disk import OS_DISK, Disk
from moldau.errors import CorruptFileError, KafkaError
from moldau.log.cleaning.cleaned_segment import CleanedSegment
from moldau.log.cleaning.job import Cleaned, CleaningJob, Done, Failed, Report, decode_job, encode_report
from moldau.log.cleaning.offset_map import OffsetMap
from moldau.log.cleaning.rewrite import BatchFilter
from moldau.log.cleaning.throttle import Throttle
from moldau.log.cleaning.transactions import CleanedTransactions
from moldau.log.files import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX, file_name
from moldau.log.segments.segment import MAX_RELATIVE_OFFSET, scan
from moldau.log.segments.txn_index import AbortedTxn, TxnIndex
from moldau.wire.batch import BatchHeader

# The event loop renames the files of a whole group in one go: four renames each, some microseconds a rename.
_GROUP_SEGMENTS_MAX = 64

Group = list[tuple[int, int]]  # base offset and size of neighbouring segments


def clean(job: CleaningJob, report: Callable[[Report], None], disk: Disk = OS_DISK) -> None:
    """Does the job, reporting each cleaned segment as soon as it is on disk, and how it ended."""
    try:
        _Cleaning(job, report, disk).run()
    except (KafkaError, CorruptFileError) as error:
        report(Failed(str(error), is_corrupt=True))
    except OSError as error:
        report(Failed(str(error), is_corrupt=False))
    except Exception as error:  # unexpected: it would end every next worker as well
        traceback.print_exc()
        report(Failed(repr(error), is_corrupt=True))


class _Cleaning:
    def __init__(self, job: CleaningJob, report: Callable[[Report], None], disk: Disk) -> None:
        self.disk = disk
        self.job = job
        self.report = report
        self.throttle = Throttle(job.bytes_per_second_max)
        self.aborted = list(self._read_aborted())
        self.end_offsets = job.end_offsets()

    def run(self) -> None:
        offset_map = self._map_keys()
        transactions = CleanedTransactions(self.aborted)
        batch_filter = BatchFilter(self.job, offset_map, transactions)
        for group in group_segments(self.disk, self.job, offset_map.end_offset):
            self._clean_group(group, batch_filter, transactions)
        self.report(Done(offset_map.end_offset, len(offset_map)))

    def _map_keys(self) -> OffsetMap:
        job = self.job
        offset_map = OffsetMap(job.first_dirty_offset, job.dedupe_buffer_bytes)
        # Those that ended in the clean part are over; a producer may have committed something since.
        transactions = CleanedTransactions(txn for txn in self.aborted if txn.last_offset >= job.first_dirty_offset)
        for base_offset, size in job.segments:
            end_offset = self.end_offsets[base_offset]
            if end_offset <= job.first_dirty_offset:
                continue
            with closing(self._batches(base_offset, size)) as batches:
                if not offset_map.add_batches(batches, transactions, job.uncompressed_bytes_max):
                    break
            offset_map.end_offset = end_offset  # there may be a gap at the end
        return offset_map

    def _clean_group(self, group: Group, batch_filter: BatchFilter, transactions: CleanedTransactions) -> None:
        job = self.job
        base_offset = group[0][0]
        cleaned = CleanedSegment(
            self.disk, job.directory, base_offset,
            index_interval_bytes=job.index_interval_bytes, buffer_bytes=job.buffer_bytes,
        )  # fmt: skip
        try:
            for source_base, size in group:
                with closing(self._batches(source_base, size)) as batches:
                    for header, batch in batches:
                        rest = batch_filter.apply(header, batch)
                        if rest is not None:
                            cleaned.append(header, *rest)
                            self.throttle.spend(len(rest[0]))
            for txn in transactions.still_aborted:
                cleaned.add_aborted(txn)
            transactions.still_aborted.clear()
            cleaned.finish(self.disk.modified_s(self._path(group[-1][0], LOG_SUFFIX)))
        finally:
            cleaned.close()
        self.disk.sync(job.directory)
        replaces = [base for base, _ in group]
        self.report(Cleaned(base_offset, replaces, sum(size for _, size in group), cleaned.size))

    def _batches(self, base_offset: int, size: int) -> Generator[tuple[BatchHeader, memoryview], None, None]:
        file = self.disk.open(self._path(base_offset, LOG_SUFFIX))
        try:
            for _, header, batch in scan(file, 0, size, chunk_bytes=self.job.buffer_bytes):
                self.throttle.spend(len(batch))
                yield header, batch
        finally:
            file.close()

    def _read_aborted(self) -> Iterator[AbortedTxn]:
        for base_offset, size in self.job.txn_indexes:
            yield from TxnIndex(self.disk, self._path(base_offset, TXN_INDEX_SUFFIX), base_offset, size=size).entries()

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self.job.directory}/{file_name(base_offset, suffix)}"


def group_segments(disk: Disk, job: CleaningJob, end_offset: int) -> Iterator[Group]:
    """Neighbours that together fit into one segment, so that cleaned segments do not stay small for ever."""
    segments = [segment for segment in job.segments if segment[0] < end_offset]
    end_offsets = job.end_offsets()
    group: Group = []
    sizes = [0, 0, 0]
    limits = (job.segment_bytes, job.segment_index_bytes, job.segment_index_bytes)
    for base_offset, size in segments:
        more = (size, *(_index_size(disk, job, base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)))
        if group and (
            len(group) == _GROUP_SEGMENTS_MAX
            or any(held + added > limit for held, added, limit in zip(sizes, more, limits, strict=True))
            or end_offsets[base_offset] - 1 - group[0][0] > MAX_RELATIVE_OFFSET
        ):
            yield group
            group, sizes = [], [0, 0, 0]
        group.append((base_offset, size))
        sizes = [held + added for held, added in zip(sizes, more, strict=True)]
    if group:
        yield group


def _index_size(disk: Disk, job: CleaningJob, base_offset: int, suffix: str) -> int:
    try:
        return disk.size(f"{job.directory}/{file_name(base_offset, suffix)}")
    except FileNotFoundError:
        return 0  # it is built again when first needed


def main() -> None:
    """Jobs one after the other. A second thread waits for the end of stdin, which ends the process at once."""
    lines: SimpleQueue[bytes] = SimpleQueue()

    def read_jobs() -> None:
        for line in sys.stdin.buffer:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read_jobs, daemon=True).start()

    def report(message: Report) -> None:
        sys.stdout.buffer.write(encode_report(message))
        sys.stdout.buffer.flush()

    while True:
        clean(decode_job(lines.get()), report)


if __name__ == "__main__":
    main()
