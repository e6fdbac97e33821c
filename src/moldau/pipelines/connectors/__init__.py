"""One file per counterpart, source and sink together; `registry` finds them by name.

`readers/` has the data sources in Python behind them, and `writers/` what writes exactly once; both need Spark.
"""
