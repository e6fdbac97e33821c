"""A pipeline as immutable data, and the tables of the options it may have. No Spark, no I/O."""
