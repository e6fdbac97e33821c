"""Log compaction: of each key the last record stays, offsets never change.

A log under `cleanup.policy=compact` has a clean part, a dirty part and a part that must not be touched yet:

    log start ........ first dirty offset ........ first uncleanable offset ........ log end
      one record per key       not looked at yet         active segment, open transactions, too young

One cleaning (Kafka's algorithm, step by step):

    plan.py          event loop   which log is the filthiest, how far it may be cleaned      → a CleaningJob
    offset_map.py    worker       the dirty part is read: the last offset of every key
    rewrite.py       worker       every segment from the start is read again, batch by batch: a record stays if no
                                  later one has its key; several small segments become one   → `.cleaned` files
    swap.py          event loop   `.cleaned` → `.swap` → in place of the old ones; finished or undone after a crash

Delete markers (a null value) and the markers of transactions of which no record is left stay for
`delete.retention.ms` after they were first met, so that a reader who was there before learns of them; their batch
then carries that time in place of its base timestamp (KIP-534). Records of aborted transactions go at once.

The worker is a process of its own, `worker.py`: the event loop never reads a record. Groups of segments are swapped
in ascending order, so that a cleaning may end after any of them: what is dropped from a later one (a delete
marker, say) is never missed by an earlier one.
"""
