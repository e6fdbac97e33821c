"""What a client process can be asked to do.

A job gets its parameters and a `ready` callable: it connects, calls `ready()` (which returns when the runner
says go), does the measured work and returns its result, `seconds` included.
"""

from __future__ import annotations

from bench.jobs import connections, embedded, librdkafka, raw_fetch, raw_produce
from bench.jobs.job import Job

JOBS: dict[str, Job] = {
    "produce": librdkafka.produce,
    "consume": librdkafka.consume,
    "produce_one_by_one": librdkafka.produce_one_by_one,
    "pipeline_requests": raw_produce.pipeline_requests,
    "fill": raw_produce.fill,
    "produce_to_each_partition": raw_produce.produce_to_each_partition,
    "fetch_at": raw_fetch.fetch_at,
    "connections": connections.connections,
    "embedded_starts": embedded.embedded_starts,
}
