"""Spark looks for data sources in packages named `pyspark_*`: with this one, `format("moldau")` works unregistered."""
