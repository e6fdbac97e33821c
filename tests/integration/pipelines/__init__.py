"""Tests of pipelines with real Spark, and a real broker where there is a topic."""
