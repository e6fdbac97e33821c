"""Tests of the model of pipelines."""
