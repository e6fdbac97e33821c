"""Groups, committed offsets and transactions: step machines `(state, event, now) -> effects`, without I/O or clocks."""
