"""Where metadata is kept, and who may write it."""
