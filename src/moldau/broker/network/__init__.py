"""Client connections, their limits, and the dispatch of a frame to its handler."""
