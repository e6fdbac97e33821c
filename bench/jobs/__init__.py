"""What a client process can be asked to do.

A job gets its parameters and a `ready` callable: it connects, calls `ready()` (which returns when the runner
says go), does the measured work and returns its result, `seconds` included.
"""

from __future__ import annotations

from bench.jobs import (
    cleaning,
    clicks,
    cluster,
    commits,
    connections,
    embedded,
    librdkafka,
    members,
    pipeline_processes,
    pipelines,
    raw_fetch,
    raw_produce,
    spark,
    spark_first,
    subscriptions,
    transactions,
)
from bench.jobs.job import Job

JOBS: dict[str, Job] = {
    "produce": librdkafka.produce,
    "consume": librdkafka.consume,
    "produce_one_by_one": librdkafka.produce_one_by_one,
    "create_and_write": cluster.create_and_write,
    "produce_paced": cluster.produce_paced,
    "fail_over": cluster.fail_over,
    "pipeline_requests": raw_produce.pipeline_requests,
    "fill": raw_produce.fill,
    "produce_to_each_partition": raw_produce.produce_to_each_partition,
    "fetch_at": raw_fetch.fetch_at,
    "connections": connections.connections,
    "subscribe": subscriptions.subscribe,
    "rebalance": members.rebalance,
    "groups": members.groups,
    "pipeline_commits": commits.pipeline_commits,
    "commit_one_by_one": commits.commit_one_by_one,
    "transact": transactions.transact,
    "consume_transactions": transactions.consume_transactions,
    "produce_keyed": cleaning.produce_keyed,
    "clean": cleaning.clean,
    "probe": cleaning.probe,
    "check_keys": cleaning.check_keys,
    "embedded_starts": embedded.embedded_starts,
    "spark_passes": spark.spark_passes,
    "spark_first_result": spark_first.spark_first_result,
    "produce_clicks": clicks.produce_clicks,
    "pipeline_passes": pipelines.pipeline_passes,
    "streams_passes": pipelines.streams_passes,
    "pipeline_first_result": pipeline_processes.pipeline_first_result,
    "idle_pipelines": pipeline_processes.idle_pipelines,
}
