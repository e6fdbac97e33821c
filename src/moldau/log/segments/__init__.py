"""The segments of a log and their indexes: one file per artefact on disk, and `log_segments` for all of them."""
