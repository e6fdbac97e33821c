"""What the cluster knows about itself: records, the immutable image they build, the store that keeps them."""
