"""Converts record batches to Arrow columns and back, in bulk. No other code of the pipeline touches single records."""
