"""What the cluster knows about itself: metadata records, the immutable image they build, and the store that keeps them."""
