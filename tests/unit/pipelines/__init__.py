"""Tests of pipelines that need no Spark."""
