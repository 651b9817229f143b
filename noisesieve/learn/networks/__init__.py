"""Which network, which weights, and the features it computes."""
