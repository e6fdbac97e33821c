"""From a pipeline to running Spark queries: build, start, supervise.

`checkpoints/`  what a query was and may become, and how to start it over
`bad_records/`  records that cannot be processed: found, left out, dead letters
`watching/`     progress, lag and metrics of running queries, and how they are shown
"""
