"""From a pipeline to running Spark queries: build, start, supervise."""
