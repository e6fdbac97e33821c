"""Pipelines: topics, files and tables joined by Spark, described in a file or in Python, kept running by an engine.

`model/`       a pipeline as data: sources → steps → sinks, expectations, tests, settings; the option tables
`doors/`       read a format (a YAML file, Python calls) and return a `Pipeline`
`connectors/`  one file per counterpart, source and sink together
`engine/`      builds Spark queries from a pipeline, starts and supervises them

Nothing here knows the broker: pipelines work with any Kafka by its address. Importing this package loads neither Spark
nor YAML.
"""
