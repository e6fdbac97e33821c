"""Records that cannot be processed: how they are found, left out, written to the dead letters and sent again."""
