"""What paired answers can and cannot prove: pure functions on counts and arrays."""
