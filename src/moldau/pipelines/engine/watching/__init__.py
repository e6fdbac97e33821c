"""What running queries do, as numbers: progress, lag, snapshots, metrics."""
